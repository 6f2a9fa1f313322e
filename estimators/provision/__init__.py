"""Makes the environment that fleetfit trains in: a venv with TensorFlow, an MPI and a Horovod built for both.

Runs with any Python 3.10+ from a bare checkout, before anything is installed: standard library only, in the whole
package. ``python3 -m estimators.provision`` is the command, :func:`estimators.provision.environment.provision` the
function behind it, :func:`estimators.provision.horovod.install` its Horovod step alone.
"""
