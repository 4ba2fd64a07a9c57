"""Noam Lab: masked self-attention language models under the Noam optimiser, as a reproducible pipeline."""
