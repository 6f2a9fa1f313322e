"""A job as values: its request, settings, inputs, policies and errors. Pure; every other package may import it."""
