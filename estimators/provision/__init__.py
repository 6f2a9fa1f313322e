"""Create the environment in which fleetfit trains.

The environment is a venv with TensorFlow, an MPI library, and a Horovod that is built for TensorFlow and MPI. The
command is ``python3 -m estimators.provision``. It calls :func:`estimators.provision.environment.provision`. The step
that installs Horovod is :func:`estimators.provision.horovod.install`.

This package uses only the standard library. Therefore any Python from 3.10 on can run the command in a checkout before
anything is installed.
"""
