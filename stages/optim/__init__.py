"""The Noam optimiser, its schedules and the registry of base optimisers."""
