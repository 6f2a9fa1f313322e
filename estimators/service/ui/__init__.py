"""The web interface: shows jobs in a browser, read from the jobs' records."""
