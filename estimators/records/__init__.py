"""Represent a job on disk: its record, status, logs, events and provenance, for readers and writers."""
