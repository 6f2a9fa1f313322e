"""Run jobs on clusters of hosts. A provider supplies the hosts (:mod:`estimators.backends.hosts.provider`)."""
