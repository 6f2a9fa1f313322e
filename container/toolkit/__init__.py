"""Run the training on a host: the training process, and the ranks that it starts. Needs the standard library only."""
