"""Read and write job files. A job file is a YAML file that describes a job (docs/job-files.md)."""
