"""Run hosts on Spark's executors. For each host, a Spark task occupies an executor."""
