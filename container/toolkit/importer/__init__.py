"""One import for all ranks of a host: what is imported, and how a rank is forked from who has imported it."""
