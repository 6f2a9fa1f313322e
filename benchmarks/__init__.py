"""Benchmarks: each row is a comparison made in one run, alternating, with its interval. See ``README.md``."""
