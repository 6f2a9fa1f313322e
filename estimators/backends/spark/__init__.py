"""Run hosts on Spark's executors. Each task of a barrier stage occupies an executor for a host."""
