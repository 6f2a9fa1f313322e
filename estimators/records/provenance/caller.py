"""Collect the facts that only the process that calls ``fit()`` knows, such as its command line.

The code runs inside ``fit()`` and must take only about a millisecond. Therefore it starts no process and imports no
large module.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from estimators.job.redaction import MASK, looks_secret, mask_argv, mask_text
from estimators.records.provenance import repository

#: The shares that :func:`estimators.records.provenance.collecting.collect` adds, in the order in which they are added.
SHARES = ("git", "software", "machine", "packages", "data")

_SEED = re.compile(r"(?:^|[^a-z])(?:[a-z]+_)*(?:seeds?|random_?state)(?:$|[^a-z])", re.IGNORECASE)
_SEED_VARIABLES = ("PYTHONHASHSEED", "TF_DETERMINISTIC_OPS", "TF_CUDNN_DETERMINISTIC")
_VARIABLE_PREFIXES = (
    "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_REGION", "CONDA_DEFAULT_ENV", "CONDA_PREFIX",
    "CUDA_", "FLEETFIT_", "GRPC_", "HOROVOD_", "KERAS_", "KMP_", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "LD_PRELOAD",
    "MKL_", "NCCL_", "NVIDIA_VISIBLE_DEVICES", "OMPI_MCA_", "OMP_", "OPENBLAS_", "PMIX_MCA_", "PRTE_MCA_", "PYTHONPATH",
    "SLURM_JOB_ID", "TF_", "TZ", "VIRTUAL_ENV", "XLA_",
)  # fmt: skip
#: Variables that fleetfit's processes set for their child processes. They have no meaning when the job is run again.
_NOT_VARIABLES = frozenset({"FLEETFIT_JOB_TOKEN", "FLEETFIT_CONTROL_FD", "FLEETFIT_LIFELINE_FD", "FLEETFIT_EVENTS"})
#: Variables of Terraform, which have TensorFlow's prefix.
_NOT_PREFIXES = ("TF_CLI_", "TF_VAR_")
_VALUE_LIMIT = 4096
_CELL_LIMIT = 256 << 10
_EARLIER_CELLS_LIMIT = 256 << 10


def caller_facts(
    *, source: str | os.PathLike[str] | None = None, hyperparameters: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the facts for ``provenance.json`` that only this process knows.

    Args:
        source: The user's code: a folder, or the entry point. The git repository that contains the code is recorded.
            None to record the repository that contains the working directory.
        hyperparameters: The user's hyperparameters, in which to search for seeds. With None, only environment variables
            are searched. :func:`~estimators.records.provenance.collecting.collect` later adds the seeds in the job's
            request.

    Returns:
        A JSON-serialisable dict. :mod:`estimators.records.provenance` describes the dict.
    """
    cwd = _cwd()
    user = os.environ.get("LOGNAME") or os.environ.get("USER")  # `pwd` may query a directory service over the network
    return {
        "format": 1,
        "complete": False,
        "pending": list(SHARES),
        "errors": {},
        "time": time.time(),
        "caller": {**_invocation(cwd), "cwd": cwd, "user": user or str(os.getuid()), "hostname": os.uname().nodename},
        "python": {
            "version": sys.version.split()[0],
            "implementation": sys.implementation.name,
            "executable": sys.executable,
            "prefix": sys.prefix,
        },
        "seeds": seeds(hyperparameters or {}),
        "environment": visible_environment(os.environ),
        "code": os.path.abspath(source) if source is not None else None,
        # Read the commit now, because the user may switch branches before the other facts are collected.
        "git": repository.head(Path(os.path.abspath(source)) if source is not None else Path(cwd) if cwd else None),
    }


def seeds(hyperparameters: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the hyperparameters and environment variables that make runs repeatable.

    These are hyperparameters whose names contain a word such as ``seed``, and variables such as ``PYTHONHASHSEED``.
    """
    found = {name: value for name, value in hyperparameters.items() if _SEED.search(name.replace("-", "_"))}
    found.update({name: environment[name] for name in _SEED_VARIABLES if name in environment})
    return found


def visible_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that affect a training, sorted by name.

    Secrets are masked and long values cut.
    """
    kept: dict[str, str] = {}
    for name in sorted(environment):
        if name.startswith(_VARIABLE_PREFIXES) and not name.startswith(_NOT_PREFIXES) and name not in _NOT_VARIABLES:
            value = environment[name]
            kept[name] = MASK if looks_secret(name) else mask_text(value[:_VALUE_LIMIT])
    return kept


def _invocation(cwd: str | None) -> dict[str, Any]:
    argv = mask_argv(sys.orig_argv)
    facts: dict[str, Any] = {"kind": "command", "argv": argv, "command": shlex.join(argv)}
    shell = _ipython()
    if shell is not None:
        facts.update(_cells(shell))
        facts["kind"] = "notebook" if hasattr(shell, "kernel") else "ipython"
        if facts["kind"] == "notebook":
            facts["notebook"] = _notebook(shell, cwd)
        return facts
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if main is not None:
        facts["script"] = _script(Path(os.path.abspath(main)))
    elif hasattr(sys, "ps1") or len(sys.orig_argv) == 1:
        facts["kind"] = "interactive"
    return facts


def _ipython() -> Any:
    """Return the shell of IPython if this process runs in IPython. Otherwise return None. IPython is not imported."""
    module = sys.modules.get("IPython")
    get = getattr(module, "get_ipython", None)
    return get() if get is not None else None


def _cells(shell: Any) -> dict[str, Any]:
    """Return the executing cell and the cells that were executed before it, from IPython's history."""
    manager = getattr(shell, "history_manager", None)
    raw = [str(cell) for cell in getattr(manager, "input_hist_raw", None) or []]
    if not raw:
        return {"cell": None, "execution_count": None, "earlier_cells": []}
    earlier: list[list[Any]] = []
    room = _EARLIER_CELLS_LIMIT
    for count in range(len(raw) - 2, 0, -1):
        room -= len(raw[count])
        if room < 0:
            break
        earlier.insert(0, [count, mask_text(raw[count])])
    return {"cell": mask_text(raw[-1][:_CELL_LIMIT]), "execution_count": len(raw) - 1, "earlier_cells": earlier}


def _notebook(shell: Any, cwd: str | None) -> str | None:
    """Return the notebook's path, or None if the path is unknown.

    VS Code stores the path in a variable of the kernel, and jupyter_server in an environment variable.
    """
    named = getattr(shell, "user_ns", {}).get("__vsc_ipynb_file__") or os.environ.get("JPY_SESSION_NAME")
    if not isinstance(named, str) or not named:
        return None
    if os.path.isabs(named) and os.path.exists(named):
        return named
    # jupyter_server's path is relative to the server's root folder, which a kernel does not know. A kernel starts in
    # the notebook's folder. Therefore try the end of the path in this folder.
    parts = Path(named.lstrip("/")).parts
    for start in range(len(parts)):
        candidate = os.path.join(cwd or "", *parts[start:])
        if os.path.isfile(candidate):
            return candidate
    return named


def _script(path: Path) -> dict[str, Any] | None:
    try:
        stat = path.stat()
    except OSError:
        return None  # ``python - < file``, or a script that has been removed
    # Leave out the digest, because importing hashlib would double the time of caller_facts(). collect() adds the digest
    # later if the file is unchanged.
    return {"path": str(path), "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def _cwd() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None  # the folder was removed while the process was in it
