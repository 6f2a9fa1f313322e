"""Run hosts as containers of a Docker-compatible engine on this machine: ``instance_type="local"`` and ``"local_gpu"``.

* :mod:`~estimators.backends.docker.provider`: the provider of the hosts.
* :mod:`~estimators.backends.docker.host`: a host that is a container, and the container's process interface.
* :mod:`~estimators.backends.docker.containers`: the descriptions of containers, as data.
* :mod:`~estimators.backends.docker.engine`: the engine's client.
* :mod:`~estimators.backends.docker.kept`: containers that are kept for the next job.
* :mod:`~estimators.backends.docker.reaper`: the removal of containers after their supervisor has ended.
"""
