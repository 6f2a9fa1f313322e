"""Run the training on one host. The toolkit is the process that prepares the host and starts the ranks, which run the
user's script.

This package needs only the standard library.
"""
