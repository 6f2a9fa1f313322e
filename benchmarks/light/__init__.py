"""Hosts without processes, to see how what is not theirs grows with their number."""
