"""A job on disk: its record, status, logs, events and provenance, as whoever reads or writes them sees them."""
