"""The process that owns a running job, and alone writes its record."""
