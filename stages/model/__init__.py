"""The masked multi-head self-attention language model."""
