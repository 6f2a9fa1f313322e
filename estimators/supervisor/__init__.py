"""The supervisor: the process that owns a running job and is the only writer of its record."""
