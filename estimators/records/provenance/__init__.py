"""Where a job came from: enough to run it again, and to know whether that would be the same run.

:func:`caller_facts` is the share that only the caller knows (its command line or notebook cell); it takes about a
millisecond and is written with the job. :mod:`~estimators.records.provenance.collecting` adds the rest beside the
training, in a child process of low priority that the supervisor starts with :func:`command`. ``fleetfit describe JOB
--reproduce`` prints the commands that run the job again (:mod:`estimators.records.provenance.reproduce`).

``provenance.json``
===================
A JSON object, mode 0600. Values whose names look secret are ``***``. A share that is not known (yet) is missing or
null; readers ignore keys that they do not know.

``format``
    1.
``complete``
    Whether every share has been collected. A job that ended very soon may lack some; ``pending`` lists them.
``pending``
    Names of the shares still to come, in order: ``git``, ``software``, ``machine``, ``packages``, ``data``.
``errors``
    ``{share: why it could not be collected}``.
``time``
    When the job was started, seconds since the epoch.
``caller``
    ``kind``: ``command``, ``notebook``, ``ipython``, ``interactive``; ``argv``: the command line; ``command``: the
    same, quoted for a shell; ``cwd``; ``script``: ``{path, bytes, mtime_ns, blake2b}`` of the Python file that was run;
    ``user``; ``hostname``. Of a notebook also ``notebook``: its path, or null where the front end does not tell;
    ``cell``: the source of the executed cell; ``execution_count``; ``earlier_cells``: ``[[count, source], …]`` of the
    cells executed before in this kernel, oldest first, up to 256 KiB.
``code``
    Where the user's code came from: the entry point that was taken alone, or the source folder; null without.
``python``
    ``version``, ``implementation``, ``executable``, ``prefix``.
``seeds``
    Hyperparameters and variables that make a run repeatable, by name (``seed``, ``PYTHONHASHSEED`` …).
``environment``
    The caller's variables that change how TensorFlow, Horovod, MPI or Python behave.
``git``
    ``root``, ``commit``, ``branch`` (null when detached), ``remote``, ``dirty``, ``diff``: a patch for ``git apply``
    from the commit to the working tree, small untracked files included; ``diff_truncated``: why it is not whole, or
    null; ``untracked_left_out``: untracked files that were too large for it. Null outside a repository.
``software``
    Versions of TensorFlow, Horovod, OpenMPI … and of fleetfit; none is imported for it.
``machine``
    ``platform``, ``kernel``, ``cpu``, ``cores``, ``memory_bytes``, ``gpus``.
``packages``
    ``freeze``: the installed packages as pip's requirements; ``python``: of which interpreter.
``data``
    For each local channel: ``path``, ``files`` (count), ``bytes``, ``digest``: a digest over all names, sizes and
    contents; ``hashed_bytes``: of how much the content was read; ``entries``: ``[name, bytes, mtime_ns,
    blake2b or null]`` of the first files.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from container.system.files import read_json
from estimators.records.provenance.caller import caller_facts

__all__ = ["FILE", "caller_facts", "command", "read"]

#: The file's name in a job's record.
FILE = "provenance.json"


def read(folder: Path) -> dict[str, Any]:
    """Read the known part of a job's provenance from the job's record. Return an empty dict if nothing is known."""
    return read_json(folder / FILE)


def command(record: Path) -> list[str]:
    """Return the command of the child process that collects a job's provenance into the job's record.

    The process lowers its priority, exits after at most a minute, and prints only errors. The process replaces
    ``provenance.json`` atomically after each share. Therefore the process may be killed at any time.
    """
    return [sys.executable, str(Path(__file__).resolve().parent / "__main__.py"), str(record)]
