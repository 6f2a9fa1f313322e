"""Run the training on a host: the training process, and the ranks below it. Needs the standard library only."""
