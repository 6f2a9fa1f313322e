"""Elastic jobs as their supervisor runs them: who is in the cluster, by which rules, and Horovod's driver beside it."""
