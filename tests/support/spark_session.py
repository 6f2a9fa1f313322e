"""A session of Spark for tests: real executors of this machine, in the process of the tests."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from estimators.backends.spark import session

#: How many executors there are, each of one core.
EXECUTORS = 3
#: By which the executors and what hosts start there are known.
MARK = "FLEETFIT_TEST_SPARK"
#: What lets a Java virtual machine that lives for minutes compile no more than it has to: a third of its time. Nor does
#: it verify Spark's own classes, which would take a seventh of the rest.
JAVA = {
    "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
}
#: The graphics processor that each executor says it has; it is none.
GPU = "7"


class Session:
    """The session, which is this process's active one.

    Attributes:
        spark: Spark's own.
    """

    def __init__(self) -> None:
        from pyspark.sql import SparkSession

        self._closed = False
        self._folder = Path(tempfile.mkdtemp(prefix="fleetfit-spark-", dir="/tmp"))  # not in a test's own
        script = self._folder / "gpus"
        script.write_text(f'#!/bin/sh\necho \'{{"name": "gpu", "addresses": ["{GPU}"]}}\'\n')
        script.chmod(0o755)
        with self._environment():
            builder = SparkSession.builder.master(f"local-cluster[{EXECUTORS},1,700]").appName("tests")
            for name, value in {
                "spark.ui.enabled": "false",
                "spark.ui.showConsoleProgress": "false",
                "spark.log.level": "OFF",
                "spark.executor.memory": "600m",
                "spark.local.dir": str(self._folder),
                "spark.worker.resource.gpu.amount": "1",
                "spark.worker.resource.gpu.discoveryScript": str(script),
                "spark.executor.resource.gpu.amount": "1",
                "spark.deploy.maxExecutorRetries": "-1",
            }.items():
                builder = builder.config(name, value)
            self.spark: Any = builder.getOrCreate()
        session.found()  # makes the file by which jobs find it, which stays open as long as this process has it
        self.wait()

    def wait(self) -> None:
        """Wait until all executors are there."""
        until = time.monotonic() + 120
        while len(self.executors()) < EXECUTORS:
            assert time.monotonic() < until, "Spark's executors do not come"
            time.sleep(0.1)

    def executors(self) -> dict[str, int]:
        """The executors that Spark knows, with the pids of those that live."""
        listed = self.spark.sparkContext._jsc.sc().statusStore().executorList(True)
        known = {listed.apply(index).id() for index in range(listed.size())} - {"driver"}
        found = {}
        for pid, words in self._processes():
            if b"--executor-id" in words:
                name = words[words.index(b"--executor-id") + 1].decode()
                if name in known:
                    found[name] = pid
        return found

    def kill(self) -> None:
        """SIGKILL to one of the executors; Spark starts another one."""
        os.kill(next(iter(self.executors().values())), signal.SIGKILL)

    def running(self) -> int:
        """How many of Spark's jobs run."""
        return len(self.spark.sparkContext.statusTracker().getActiveJobsIds())

    def pids(self) -> list[int]:
        """The processes that agents have started, and the agents."""
        found = []
        for pid, words in self._processes():
            with contextlib.suppress(OSError):
                environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if b"--lifeline" in words or any(item.startswith(b"FLEETFIT_JOB=") for item in environ):
                    found.append(pid)
        return found

    @staticmethod
    def _processes() -> Iterator[tuple[int, list[bytes]]]:
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if f"{MARK}={os.getpid()}".encode() in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    yield int(name), Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")

    @contextlib.contextmanager
    def _environment(self) -> Iterator[None]:
        """What executors have of a test's environment: no folders of its, and a mark."""
        before, temporary = dict(os.environ), tempfile.tempdir
        tempfile.tempdir = str(self._folder)
        for name in ("FLEETFIT_HOME", "TMPDIR"):
            os.environ.pop(name, None)
        work = str(self._folder / "work")
        os.environ.update({**JAVA, MARK: str(os.getpid()), "SPARK_WORKER_DIR": work, "PYSPARK_PYTHON": sys.executable})
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)
            tempfile.tempdir = temporary

    def close(self) -> None:
        """End everything, once."""
        if self._closed:
            return
        self._closed = True
        process = self.spark.sparkContext._gateway.proc
        self.spark.stop()
        process.stdin.close()
        process.wait(60)
        shutil.rmtree(self._folder, ignore_errors=True)


@functools.cache
def shared() -> Session:
    """Return this process's session: a process has one, and fixtures of several folders ask for it."""
    return Session()
