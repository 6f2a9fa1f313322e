"""Reach machines with the user's own ``ssh``: for ``instance_type="ssh"``, for EC2, and for dispatchers.

A dispatcher is a machine that runs the supervisors of jobs.

* :mod:`~estimators.backends.openssh.command`: ssh's command lines, and explanations of its error messages.
* :mod:`~estimators.backends.openssh.connection`: connections, and sessions that use them.
* :mod:`~estimators.backends.openssh.starting`: the start of our programs on the machines.
"""
