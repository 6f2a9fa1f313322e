"""Record the origin of a job: its code, data and software, and the command that started it.

The facts suffice to run the job again, and to see whether the new run uses the same code, data and software.

The facts are collected in two steps. First, ``fit()`` calls :func:`caller_facts`, which returns the facts that only the
calling process knows, such as its command line or notebook cell. This takes about a millisecond, and the result is
written when the job's record is created. Then, during the training, the job's supervisor starts a child process, whose
command line :func:`command` returns. This process lowers its own priority, and collects the other facts
(:mod:`~estimators.records.provenance.collecting`).

``fleetfit describe JOB --reproduce`` prints the commands that run the job again
(:mod:`estimators.records.provenance.reproduce`).

``provenance.json``
===================

The file contains a JSON object, and has mode 0600. The values of variables whose names look secret are ``***``. A share
is one group of facts, such as ``git``. A share that has not been collected is missing or null. Readers ignore keys that
they do not know.

``format``
    The version of the format: 1.
``complete``
    Whether every share has been collected. A job that ended early may lack some shares, which ``pending`` lists.
``pending``
    The names of the shares that have not been collected yet, in order: ``git``, ``software``, ``machine``,
    ``packages``, ``data``.
``errors``
    ``{share: reason}``: the reason why a share could not be collected.
``time``
    The time at which the job was started, in seconds since the epoch.
``caller``
    * ``kind``: ``command``, ``notebook``, ``ipython`` or ``interactive``.
    * ``argv``: the command line.
    * ``command``: the command line, quoted for a shell.
    * ``cwd``, ``user``, ``hostname``.
    * ``script``: ``{path, bytes, mtime_ns, blake2b}`` of the Python file that was run.
    * ``notebook``: the notebook's path, or null if the front end does not provide the path.
    * ``cell``: the source of the executed cell of the notebook.
    * ``execution_count``: the number of the executed cell.
    * ``earlier_cells``: ``[[count, source], …]`` of the cells that were executed before in this kernel, oldest first,
      up to 256 KiB.
``code``
    The absolute path of the source folder, or of the entry point if there is no source folder. Null if the job has no
    code.
``python``
    ``version``, ``implementation``, ``executable``, ``prefix``.
``seeds``
    The hyperparameters and environment variables that make a run repeatable, by name: ``seed`` and
    ``PYTHONHASHSEED``, for example.
``environment``
    The caller's environment variables that change how TensorFlow, Horovod, MPI or Python behave.
``git``
    The value is null outside a repository.

    * ``root``, ``commit``, ``remote``, ``dirty``.
    * ``branch``: the branch, or null if the head is detached.
    * ``diff``: a patch for ``git apply`` from the commit to the working tree, including small untracked files.
    * ``diff_truncated``: the reason why the patch is incomplete, or null.
    * ``untracked_left_out``: the untracked files that were too large for the patch.
``software``
    The versions of TensorFlow, Horovod, OpenMPI … and of fleetfit. The versions are read without importing the
    packages.
``machine``
    ``platform``, ``kernel``, ``cpu``, ``cores``, ``memory_bytes``, ``gpus``.
``packages``
    * ``freeze``: the installed packages as pip's requirements.
    * ``python``: the interpreter that has the packages.
``data``
    The facts about each local channel:

    * ``path``, ``files`` (the number of files), ``bytes``.
    * ``digest``: a digest over all names, sizes and contents.
    * ``hashed_bytes``: the number of bytes of content that were read.
    * ``complete``: whether the digest covers the contents of all files.
    * ``entries``: ``[name, bytes, mtime_ns, blake2b]`` of each of the first 2,000 files. ``blake2b`` is null if the
      content was not read.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from container.system.files import read_json
from estimators.records.provenance.caller import caller_facts

__all__ = ["FILE", "caller_facts", "command", "read"]

#: The name of the provenance file in a job's record.
FILE = "provenance.json"


def read(folder: Path) -> dict[str, Any]:
    """Read a job's provenance, as far as it has been collected.

    Return an empty dict if the record has no provenance.
    """
    return read_json(folder / FILE)


def command(record: Path) -> list[str]:
    """Return the command of the child process that collects a job's provenance into the job's record.

    The process lowers its priority, exits after at most a minute, and prints only errors. It may be killed at any time,
    because it replaces ``provenance.json`` atomically after each share.
    """
    return [sys.executable, str(Path(__file__).resolve().parent / "__main__.py"), str(record)]
