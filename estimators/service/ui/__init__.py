"""The web interface: jobs in a browser, read from their records."""
