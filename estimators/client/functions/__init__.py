"""Runs functions as entry points. Packs a function, runs the function on a host, and returns the return value."""
