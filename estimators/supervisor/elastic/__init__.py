"""The supervisor's part of elastic jobs: the members of the cluster, the rules for them, and Horovod's driver."""
