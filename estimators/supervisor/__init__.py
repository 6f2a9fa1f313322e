"""Define the supervisor, the process that owns a running job and is the only writer of the job's record."""
