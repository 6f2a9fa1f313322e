"""Creates the environment in which fleetfit trains.

The environment is a venv with TensorFlow, an MPI library, and a Horovod that is built for TensorFlow and MPI. The
package uses only the standard library. Any Python from 3.10 on can run the package, from a checkout in which nothing is
installed yet. ``python3 -m estimators.provision`` is the command. The function behind the command is
:func:`estimators.provision.environment.provision`. The step that installs Horovod is
:func:`estimators.provision.horovod.install`.
"""
