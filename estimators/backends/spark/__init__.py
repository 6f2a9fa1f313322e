"""Hosts that are executors of Spark: a barrier stage whose tasks hold our toolkit's places."""
