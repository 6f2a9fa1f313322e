"""Hosts as containers of a Docker-compatible engine on this machine: ``instance_type="local"`` and ``"local_gpu"``.

* :mod:`~estimators.backends.docker.provider`: where the hosts come from.
* :mod:`~estimators.backends.docker.host`: one of them, and its container as a process.
* :mod:`~estimators.backends.docker.containers`: what each container is, as data.
* :mod:`~estimators.backends.docker.engine`: the engine.
* :mod:`~estimators.backends.docker.kept`: containers that are kept for the next job.
* :mod:`~estimators.backends.docker.reaper`: what removes them after the supervisor.
"""
