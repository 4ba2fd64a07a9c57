"""The commands of `noam` that ask a model, one module each."""
