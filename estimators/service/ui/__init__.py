"""Show jobs in a browser (``fleetfit ui``). The pages show data from the jobs' records."""
