"""Batches, random streams and the training loop."""
