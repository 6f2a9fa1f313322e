"""Reads and writes job files. A job file describes a job as YAML that can be reviewed and committed
(docs/job-files.md).
"""
