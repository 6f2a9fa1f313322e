"""Simulates a job on interruptible hosts. The simulation uses the decision functions of the real supervisor."""
