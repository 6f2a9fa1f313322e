"""Job files: a job as YAML that is reviewed and committed (docs/job-files.md)."""
