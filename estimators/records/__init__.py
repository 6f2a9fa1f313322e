"""Read and write a job's record, the folder on disk with the job's status, logs, events and provenance."""
