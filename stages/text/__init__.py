"""Corpus text: reading, normalisation, splits, vocabulary."""
