"""Metrics, the report and the figures: data in, figure out."""
