"""Studies: variants × seeds from one small file, run once, compared honestly."""
