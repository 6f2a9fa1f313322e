"""Run a user's function as the entry point of a job: pack the function, run it on the hosts, and return its value."""
