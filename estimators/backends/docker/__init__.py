"""Hosts as containers of a Docker-compatible engine on this machine: ``instance_type="local"`` and ``"local_gpu"``.

* :mod:`~estimators.backends.docker.containers`: what each container is, as data.
* :mod:`~estimators.backends.docker.engine`: the engine, through Docker's own SDK, and what its errors mean.
* :mod:`~estimators.backends.docker.backend`: runs a job's containers from the supervisor.
* :mod:`~estimators.backends.docker.reaper`: removes them, whatever happens to the supervisor.
"""
