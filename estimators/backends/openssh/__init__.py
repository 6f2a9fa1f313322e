"""Machines by the user's own ``ssh``: for ``instance_type="ssh"``, for EC2, and for dispatchers that ssh reaches.

* :mod:`~estimators.backends.openssh.command`: how ssh is called, and what its complaints mean.
* :mod:`~estimators.backends.openssh.connection`: a connection, and what goes through it.
* :mod:`~estimators.backends.openssh.starting`: programs of ours that are started there.
"""
