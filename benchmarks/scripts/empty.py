"""Nothing: what is left is the launch and the end."""
