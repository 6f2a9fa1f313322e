"""Run Spark jobs for a job's supervisor, in the session of the process that called ``fit()``.

    python -I driver.py

The Spark tasks occupy executors for the hosts. This is a separate program
(:mod:`estimators.backends.hosts.cluster_program`), because Spark has its own modules and threads. The program has these
arguments in addition to those of every cluster program:

* ``connect`` with ``session``, which has ``path`` (the path of the file with the session's secret) and ``application``.
* ``acquire`` with ``together``, which says whether the hosts' tasks form one barrier stage. Spark starts and ends all
  tasks of a barrier stage together.

Each host's agent connects to the supervisor from its executor's machine. The supervisor reads the host's address from
that connection. Exchanging the addresses with the barrier stage's ``allGather`` would take about one second.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

if __name__ == "__main__":  # run as a separate program
    sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "hosts"))
    import cluster_program  # type: ignore[import-not-found]
    import joining  # type: ignore[import-not-found]
else:
    from estimators.backends.hosts import cluster_program, joining

start_agent = joining.start_agent

#: Seconds between two checks of executors and stages.
_LOOK_S = 0.25
#: Seconds without a new executor after which the driver reports that Spark has too few executors. The first value holds
#: if Spark has executors and their planned number is not known. The second value holds if Spark has no executors, or
#: fewer than planned.
_ENOUGH_S, _EXPECTED_S = 10.0, 60.0
#: Seconds after which busy executors are reported.
_SLOW_S = 5.0
#: Variables of Spark's Python workers, which are not for the script.
_SPARKS = ("SPARK_", "PYSPARK_", "_PYSPARK_", "PYTHON_", "OMP_NUM_THREADS", "PYTHONHASHSEED", "PYTHONPATH")


# --- in a task, on an executor: only the standard library and :mod:`estimators.backends.hosts.joining` ---


def holding(asked: dict[str, Any], code: bytes) -> Callable[[Iterable[int]], list[int]]:
    """Return the function of a Spark task that starts a host's agent. The task ends when the agent ends, and the agent
    ends when the task ends.

    Args:
        asked: The request for the hosts, with each host's identity and key.
        code: The archive of our toolkit.
    """

    def hold(_: Iterable[int]) -> list[int]:
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        if context.attemptNumber():  # a retry of a task; retries of stages are cancelled
            return []
        added = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and not is_sparks(path)]
        env = {name: value for name, value in os.environ.items() if not name.startswith(_SPARKS)}
        if added:
            env["PYTHONPATH"] = os.pathsep.join(added)
        gpus = context.resources().get("gpu")
        if gpus is not None:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(gpus.addresses)
        agent = start_agent({**asked, **asked["hosts"][context.partitionId()]}, code, env)
        parent = os.getppid()
        with agent:
            while not select.select([agent], [], [], 1.0)[0]:
                if os.getppid() != parent:  # the executor has ended
                    break
        return []

    return hold


def is_sparks(path: str) -> bool:
    """Return whether Spark itself has added a path to its workers' PYTHONPATH."""
    name = os.path.basename(path)
    return name == "pyspark.zip" or name.startswith(("py4j-", "spark-core_"))


# --- in the driver ---


class SparkHost(cluster_program.ProgramHost):
    """A host with the state of its Spark task."""

    def __init__(self, wanted: dict[str, str]) -> None:
        super().__init__(wanted)
        self.stage = ""  # the job group of its task
        self.placed = self.told = False  # whether its executor and its end were reported


class SparkDriver(cluster_program.Program):
    """A program that executes a supervisor's requests to Spark."""

    host_type = SparkHost

    def __init__(self, output: int) -> None:
        super().__init__(output)
        self._stages: set[str] = set()  # the running stages, by job group
        self._placing = threading.Lock()  # hosts of an elastic job are requested one by one
        self._context: Any = None
        self._local = False

    def connect(self, asked: dict[str, Any]) -> None:
        """Join the caller's Spark session. Send the event ``connected`` or ``refused``."""
        warnings.simplefilter("ignore")  # a warning must not be taken for the reason of a failure
        try:
            self._join(asked["session"])
            from pyspark import cloudpickle

            cloudpickle.register_pickle_by_value(joining)  # the executors do not have this module
            master, driver = str(self._context.master), str(self._context.getConf().get("spark.driver.host"))
            address = "127.0.0.1" if master.startswith("local") else socket.gethostbyname(driver)
        except Exception as error:  # noqa: BLE001 - PySpark and Py4J raise a dozen kinds
            self.say("refused", reason=line_of(error))
            return
        self._local = master.startswith("local") and not master.startswith("local-cluster")
        self.say("connected", address=address)

    def _join(self, session: dict[str, str]) -> None:
        """Connect to the caller's Java virtual machine as a second client.

        Raises:
            ValueError: the caller has ended, or its session has been stopped.
        """
        try:
            with open(session["path"], encoding="utf-8") as file:
                way = json.load(file)
        except (OSError, ValueError, KeyError):
            raise ValueError("the process that called fit(), which has the Spark session, has ended") from None
        os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"] = str(way["port"]), way["secret"]
        os.environ["PYSPARK_PIN_THREAD"] = str(way["pinned"]).lower()
        os.environ["PYSPARK_PYTHON"] = way["python"]
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway

        gateway = launch_gateway()
        for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"):
            del os.environ[name]
        jvm = gateway.jvm
        active = getattr(jvm, "org.apache.spark.SparkContext$").__getattr__("MODULE$").getActive()
        if not active.isDefined() or active.get().applicationId() != session["application"]:
            raise ValueError("the Spark session of the process that called fit() has been stopped")
        java = jvm.org.apache.spark.api.java.JavaSparkContext(active.get())
        conf = SparkConf(_jvm=jvm, _jconf=java.getConf())
        self._context = SparkContext(conf=conf, gateway=gateway, jsc=java)

    # --- hosts ---

    def acquire(self, asked: dict[str, Any], hosts: list[SparkHost]) -> None:
        """Run a Spark job whose tasks occupy executors for the hosts. Return when the hosts are released or lost."""
        stage = f"fleetfit-{hosts[0].identity}"
        reason = ""
        over = threading.Event()
        try:
            cores = self._await_room(stage, hosts, wait=not asked["together"])
            if cores is None:
                return
            self._stages.add(stage)
            self.in_thread(self._watch, stage, hosts, over)
            self._context.setJobGroup(stage, f"fleetfit: {len(hosts)} hosts", interruptOnCancel=True)
            # Not a range, for which Spark would start an additional Python worker first.
            rows = self._context.parallelize(list(range(len(hosts))), len(hosts))
            if not self._local:
                rows = rows.withResources(self._profile(cores))
            words = [{"identity": host.identity, "key": host.key} for host in hosts]
            task = holding({**asked, "hosts": words, "code": self.code_name}, self.code)
            (rows.barrier() if asked["together"] else rows).mapPartitions(task).collect()
        except Exception as error:  # noqa: BLE001 - PySpark and Py4J raise a dozen kinds
            reason = line_of(error)
        finally:
            over.set()
            self._stages.discard(stage)
            for host in hosts:
                host.over.set()
            self._tell(hosts, reason)

    def _tell(self, hosts: list[SparkHost], reason: str) -> None:
        """Report the end of each host's task. The end of a task is reported only once."""
        for host in hosts:
            if not host.told:
                host.told = True
                self.say("ended", host=host.identity, reason=reason)

    def _profile(self, cores: int) -> Any:
        """Return the resource profile with which each task occupies a whole executor."""
        from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

        requests = TaskResourceRequests().cpus(cores)
        for name, value in self._context.getConf().getAll():
            if name.startswith("spark.executor.resource.") and name.endswith(".amount"):
                requests.resource(name.split(".")[3], int(value))
        return ResourceProfileBuilder().require(requests).build

    def _await_room(self, stage: str, hosts: list[SparkHost], *, wait: bool) -> int | None:
        """Wait until Spark has an executor for each host, and reserve the executors for a stage.

        Args:
            stage: The job group of the stage.
            hosts: The requested hosts.
            wait: Whether to wait without a limit.

        Returns:
            The number of cores to request for each host, or None if all hosts were released during the wait.

        Raises:
            ValueError: Spark has fewer executors than hosts, and no more executors are expected.
        """
        said, since = "", 0.0
        while not all(host.released.is_set() for host in hosts):
            cores = sorted(self._cores(), reverse=True)
            room = sum(cores) if self._local else len(cores)
            with self._placing:
                others = [host for host in list(self.hosts.values()) if host.stage and not host.over.is_set()]
                wanted = len(hosts) + len(others)
                if room >= wanted:
                    for host in hosts:
                        host.stage = stage
                    return 1 if self._local else cores[wanted - 1]
            unit = "core" if self._local else "executor"
            reason = f"Spark has {room} {unit}{'s' * (room != 1)} for {wanted} hosts, and each host needs one"
            if reason != said:
                said, since = reason, time.monotonic()
                self.say("pending", reason=reason)
            if not wait and time.monotonic() - since > self._patience(room):
                more = "executors (spark.executor.instances)"
                if self._local:
                    more = "cores (the master local[N])"
                raise ValueError(f"{reason}. Start more {more}, or use fewer hosts")
            time.sleep(_LOOK_S)
        return None

    def _patience(self, room: int) -> float:
        """Return how many seconds to wait for one more executor.

        Args:
            room: The number of executors that Spark has now. If Spark runs on this machine only, the number of Spark's
                cores.
        """
        if self._local and room:
            return 0.0
        planned = self._context.getConf().get("spark.executor.instances")
        if str(self._context.master).startswith("local-cluster["):
            planned = self._context.master.partition("[")[2].partition(",")[0]
        if planned:
            return _EXPECTED_S if room < int(planned) else 0.0
        return _ENOUGH_S if room else _EXPECTED_S

    def _cores(self) -> list[int]:
        """Return the number of cores of each live executor, as a list."""
        listed = self._context._jsc.sc().statusStore().executorList(True)
        found = [listed.apply(index) for index in range(listed.size())]
        return [int(one.totalCores()) for one in found if self._local or one.id() != "driver"]

    def _watch(self, stage: str, hosts: list[SparkHost], over: threading.Event) -> None:
        """Report the executors on which a stage's tasks run, until the stage ends.

        If the stage fails, report the reason and cancel the stage before Spark retries it.
        """
        began, told = time.monotonic(), False
        while not over.wait(_LOOK_S):
            # A finished stage is not found; the end of the session is reported by collect().
            with contextlib.suppress(Exception):
                reason = self._failure(stage)
                if reason is not None:
                    self._tell(hosts, reason)
                    self._cancel(stage)
                    return
                running = self._place(stage, hosts)
                if not told and not running and time.monotonic() - began > _SLOW_S:
                    told = True
                    self.say("pending", reason=f"Spark's executors are busy: {len(hosts)} hosts wait for their tasks")

    def _states(self, stage: str) -> list[Any]:
        tracker = self._context.statusTracker()
        jobs = [info for job in tracker.getJobIdsForGroup(stage) if (info := tracker.getJobInfo(job)) is not None]
        return [state for info in jobs for one in info.stageIds if (state := tracker.getStageInfo(one))]

    def _failure(self, stage: str) -> str | None:
        """Return why a stage has failed. Return None if the stage has not failed."""
        for state in self._states(stage):
            if state.currentAttemptId > 0 or state.numFailedTasks > 0:
                return self._why(state.stageId)
        return None

    def _place(self, stage: str, hosts: list[SparkHost]) -> bool:
        """Report the executor of each host once. Return whether the executors of all hosts are known."""
        for state in self._states(stage) if not all(host.placed for host in hosts) else ():
            tasks = self._context._jsc.sc().statusStore().taskList(state.stageId, 0, len(hosts))
            for task in map(tasks.apply, range(tasks.size())):
                if not (host := hosts[task.index()]).placed:
                    host.placed = True
                    self.say("placed", host=host.identity, node=f"executor {task.executorId()} on {task.host()}")
        return all(host.placed for host in hosts)

    def _why(self, stage: int) -> str:
        """Return the reason why the first attempt of a stage has failed."""
        store = self._context._jsc.sc().statusStore()
        gateway = self._context._gateway
        with contextlib.suppress(Exception):
            tasks = store.taskList(stage, 0, 1000)
            for index in range(tasks.size()):
                if (said := tasks.apply(index).errorMessage()).isDefined() and "barrier" not in said.get()[:40]:
                    return line_of(said.get())
        with contextlib.suppress(Exception):
            empty = gateway.jvm.java.util.ArrayList()
            found = store.stageAttempt(stage, 0, False, empty, False, gateway.new_array(gateway.jvm.double, 0))
            if (said := found._1().failureReason()).isDefined():
                return line_of(said.get())
        return "its task has failed"

    def release(self, host: SparkHost) -> None:
        """Wait until the host's task has ended with its agent. After a timeout, cancel the stage if all its hosts are
        released.
        """
        if not host.over.wait(cluster_program.RELEASE_S) and all(other.released.is_set() for other in host.shares):
            self._cancel(host.stage)

    def _cancel(self, stage: str) -> None:
        with contextlib.suppress(Exception):
            self._context.cancelJobGroup(stage)

    def disconnect(self) -> None:
        """Cancel the Spark jobs of the hosts. The caller's session stays open."""
        for stage in list(self._stages):
            self._cancel(stage)


def line_of(error: BaseException | str) -> str:
    """Convert an error to one line.

    The line is the last line of a Python traceback. For other errors, the line is the first reason that Spark gives.
    """
    lines = [line.strip().removeprefix(": ") for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(("at ", "SQLSTATE", ")"))]
    if not lines:
        return type(error).__name__
    for index, line in enumerate(lines):
        if "Traceback (most recent call last)" in line:
            ends = [one for one in lines[index:] if not one.startswith(("File ", "Traceback")) and ": " in one]
            return (ends[-1] if ends else lines[-1])[:500]
    reasons = [line for line in lines if line.startswith("ExecutorLost")]  # names the executor
    reasons += [line for line in lines if "failure" in line.lower() or "Exception: " in line]
    return (reasons[0] if reasons else lines[0])[:500]


if __name__ == "__main__":
    cluster_program.serve(SparkDriver)
