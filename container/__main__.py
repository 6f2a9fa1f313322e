"""Run the programs of a host: ``python -m container COMMAND``.

* ``train``: the toolkit, which is the process that prepares a host and starts the ranks.
* ``debug``: only the job's entry point, in the foreground.
* ``agent``: the tasks that SageMaker's platform has on a host, such as downloading the data.
* ``idle``: the first process of a container that is kept between jobs.
* ``elastic``: Horovod's elastic driver, which runs next to the job's supervisor.
* ``rank`` (the wrapper around each rank), ``rsh`` (mpirun's remote shell) and ``serve`` (a parameter server): programs
  that the toolkit starts.

The toolkit starts this file by its path and in isolated mode (``python -I``), so that a ``container.py`` in the
working directory is never taken for this package.
"""

from __future__ import annotations

import gc
import os
import signal
import sys

#: The number of new objects after which the garbage collector runs. Loading modules creates many objects but no
#: garbage. Therefore a run of the collector would only delay a job's start.
_OBJECTS = 100_000


def main() -> int:
    """Run the command that ``sys.argv`` names, and return its exit code."""
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    arguments = sys.argv[2:]
    if command == "rank":
        from container.toolkit import rank

        return rank.main(arguments)
    if command == "train":
        # until the loop handles SIGINT, the signal ends the process without a traceback, which would not be useful
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        gc.set_threshold(_OBJECTS)
        from container.toolkit import train

        return train.main(arguments)
    if command == "rsh":
        from container.toolkit.mpi import rsh

        return rsh.main(arguments)
    if command == "serve":
        from container.distributed.tensorflow import server

        return server.serve()
    if command == "debug":
        from container.toolkit import debug

        return debug.main(arguments)
    if command == "idle":
        from container.toolkit import idle

        return idle.main(arguments)
    if command == "elastic":
        from container.toolkit.elastic import driver

        return driver.main(arguments)
    if command == "agent":
        gc.set_threshold(_OBJECTS)
        from container import agent

        return agent.main(arguments)
    commands = "train|debug|agent|idle|elastic|rank|rsh|serve"
    print(f"usage: python -m container {commands} …; got {command!r}", file=sys.stderr)
    return 2


def find_package() -> None:
    """Replace this file's folder by the folder's parent in ``sys.path``, so that ``import container`` finds this
    package. Do nothing if this program was started with ``python -m container``.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    if __package__ in (None, ""):
        sys.path[:] = [os.path.dirname(here), *(path for path in sys.path if os.path.abspath(path) != here)]


def leave(code: int) -> None:
    """Exit the process at once, without the interpreter's shutdown, which would take some milliseconds of every job."""
    try:
        sys.stdout.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    find_package()
    if sys.argv[1:2] == ["agent"]:
        from container.system import ending

        ending.run(main)
    exit_code = main()
    if sys.argv[1:2] in (["train"], ["rank"], ["rsh"]):
        leave(exit_code)
    sys.exit(exit_code)
