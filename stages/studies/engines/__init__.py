"""Where the variants of a study run when it is not this process tree: one module a system, each a thin adapter."""
