"""The page: jobs in a browser, read from their records."""
