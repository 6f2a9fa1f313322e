"""The session of the process that calls ``fit()``: how the job's supervisor finds it.

A session's Java virtual machine takes connections of this machine that know its secret. That stands in no record: it
lies in this process's memory, in a file without a name that only the same user can open while this process lives.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from typing import Any

from estimators.backends.spark.options import DYNAMIC, dynamic_refusal


def refusal() -> str | None:
    """Return why the session of this process cannot have jobs on its executors; None if it can, or if there is none."""
    context = _context()
    if context is not None:
        conf = context.getConf()
        return dynamic_refusal() if str(conf.get(DYNAMIC, "false")).lower() == "true" else None
    connect = sys.modules.get("pyspark.sql.connect.session")
    if connect is not None and connect.SparkSession.getActiveSession() is not None:
        return (
            "this process has a session of Spark Connect, which has no executors to start hosts on; call fit() where a "
            "classic session is, or name the cluster with backend_options={'master': …}."
        )
    return None


def found() -> dict[str, Any] | None:
    """Return where the session of this process is found; None if there is none."""
    context = _context()
    if context is None:
        return None
    return {"path": f"/proc/{os.getpid()}/fd/{_kept(_way(context))}", "application": context.applicationId}


def exists() -> bool:
    """Return whether this process has a session."""
    return _context() is not None


def _context() -> Any:
    """Return the active SparkContext of this process; None if there is none. Nothing of Spark is imported for it."""
    spark = sys.modules.get("pyspark")
    context = getattr(getattr(spark, "SparkContext", None), "_active_spark_context", None)
    return context if context is not None and getattr(context, "_jsc", None) is not None else None


def _way(context: Any) -> str:
    parameters = context._gateway.gateway_parameters
    pinned = type(context._gateway).__name__ == "ClientServer"
    return json.dumps(
        {
            "port": parameters.port,
            "secret": parameters.auth_token,
            "pinned": pinned,
            "python": context.pythonExec,
        }
    )


@functools.lru_cache(maxsize=8)
def _kept(way: str) -> int:
    """Return the descriptor of a file without a name."""
    fd = os.memfd_create("fleetfit-spark", os.MFD_CLOEXEC)
    os.write(fd, way.encode())
    os.fchmod(fd, 0o600)
    return fd
