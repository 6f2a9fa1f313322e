"""Control elastic jobs in the supervisor: the members of the cluster, the rules for them, and Horovod's driver."""
