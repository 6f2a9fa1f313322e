"""Pass the Spark session of the process that calls ``fit()`` to the job's supervisor.

The session's Java virtual machine accepts local clients that know the session's secret. The secret is not in the job's
record, but in an unnamed file in this process's memory. Only the same user can open the file, and only while this
process lives.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from typing import Any

#: The setting with which Spark adds and removes executors by itself.
_DYNAMIC = "spark.dynamicAllocation.enabled"


def refusal() -> str | None:
    """Return why this process has no session whose executors can be hosts. Return None if it has a usable session."""
    context = _context()
    if context is not None:
        if str(context.getConf().get(_DYNAMIC, "false")).lower() != "true":
            return None
        return (
            f"{_DYNAMIC} is true: with dynamic allocation, Spark supports no barrier stages, and removes executors "
            f"that seem idle. Set {_DYNAMIC} to false, and spark.executor.instances to the number of hosts."
        )
    connect = sys.modules.get("pyspark.sql.connect.session")
    if connect is not None and connect.SparkSession.getActiveSession() is not None:
        return (
            "this process has a session of Spark Connect, which cannot start hosts on executors. Call fit() in a "
            "process with a classic session."
        )
    return (
        "this process has no Spark session, but the hosts are executors of the session of the process that calls "
        "fit(). Make a session before fit(): SparkSession.builder.master('spark://head:7077').getOrCreate()."
    )


def found() -> dict[str, Any] | None:
    """Return the two values that the supervisor needs to join the session of this process.

    The values are the path of the file with the session's secret, and the session's application id. Return None if this
    process has no session.
    """
    context = _context()
    if context is None:
        return None
    gateway = context._gateway
    way = {
        "port": gateway.gateway_parameters.port,
        "secret": gateway.gateway_parameters.auth_token,
        "pinned": type(gateway).__name__ == "ClientServer",
        "python": context.pythonExec,
    }
    return {"path": f"/proc/{os.getpid()}/fd/{_kept(json.dumps(way))}", "application": context.applicationId}


def _context() -> Any:
    """Return this process's active SparkContext, without importing Spark. Return None if there is no active context."""
    spark = sys.modules.get("pyspark")
    context = getattr(getattr(spark, "SparkContext", None), "_active_spark_context", None)
    return context if context is not None and getattr(context, "_jsc", None) is not None else None


@functools.lru_cache(maxsize=8)
def _kept(way: str) -> int:
    """Create an unnamed file in memory with the content ``way``, and return its descriptor. Equal contents share a
    file.
    """
    fd = os.memfd_create("fleetfit-spark", os.MFD_CLOEXEC)
    os.write(fd, way.encode())
    os.fchmod(fd, 0o600)
    return fd
