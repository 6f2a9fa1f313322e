"""A backend for measuring: many hosts in one process. See :mod:`benchmarks.light.fleet`."""
