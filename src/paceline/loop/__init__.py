"""A user's own training loop as a worker of a run."""
