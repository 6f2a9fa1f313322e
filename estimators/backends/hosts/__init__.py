"""Clusters of hosts that a provider has: see :mod:`estimators.backends.hosts.provider` for what a provider is."""
