"""A job as values: its request, settings, inputs, policies and errors. Pure, and known to every other room."""
