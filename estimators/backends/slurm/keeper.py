"""Run Slurm's commands for a job's supervisor. When the supervisor has ended in any way, cancel the job's allocations.

    python -I keeper.py

This is a separate program, so that the supervisor's event loop never waits for Slurm, and the allocations are cancelled
even if the supervisor was killed. It needs only the standard library. A submission that is in progress when the
supervisor ends is completed first, so that its allocation can be cancelled, too.

The supervisor sends requests, JSON lines with an ``op``. The answers are JSON lines with an ``event`` and the ``id`` of
the request. Each operation is listed with its arguments and its answers. ``job`` is the number of a Slurm job:

* ``submit`` with ``argv`` and ``script``. The answer is ``submitted`` with ``job``, or ``refused`` with ``reason``.
* ``watch`` with ``job``. The answer is ``pending`` with ``reason`` and ``position`` whenever these change. The last
  answer is ``running`` or ``over``. ``running`` has ``nodes``: the name and address of each node, with the node of the
  batch script first. ``over`` has ``state`` and ``reason``.
* ``again`` with ``job`` requeues a job that Slurm has taken away or is taking away. The answers are those of ``watch``.
* ``look`` with ``job``. The answer is ``state`` with ``state`` and ``left``. ``left`` is the number of seconds until
  Slurm kills the job's processes, or null if Slurm does not report the time.
* ``hold`` with ``job`` makes the keeper cancel the job when the supervisor has ended. This request has no answer.
* ``cancel`` with ``job`` cancels the job immediately. This request has no answer.
"""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

#: Longest time that a Slurm command may take, in seconds: a restarting controller answers late.
_COMMAND_S = 60.0
#: Number of attempts for a request that the controller does not answer.
_TRIES = 3
#: Seconds before each request for the time at which a signalled allocation ends. Slurm may signal the nodes before it
#: sets this time.
_END_PAUSES_S = (0.0, 0.1, 0.4)
#: Seconds between two polls of Slurm's queue: the first and the longest delay, and the factor by which the delay grows.
#: The start of a job is thus noticed at once if it comes soon, and later the polls do not burden the controller.
_FIRST_S, _LAST_S, _SLOWER = 0.05, 5.0, 1.3
#: Seconds for which cancelling is retried if Slurm does not answer.
_CANCEL_S = 600.0
#: States of an allocation that waits to run.
_WAITING = frozenset(
    {"PENDING", "CONFIGURING", "COMPLETING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
)
#: Paths of Slurm's configuration file: Debian's path, Debian's old path, the path of a custom build, and the copy of
#: slurmd.
_CONFIGURATIONS = (
    "/etc/slurm/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/usr/local/etc/slurm.conf",
    "/run/slurm/conf/slurm.conf",
)
#: RUNNING, and temporary states of a running allocation, for example while a signal is delivered.
_RUNNING = frozenset({"RUNNING", "SIGNALING", "RESIZING"})
_FORMAT = "%A|%T|%r|%P"
#: Pattern of the variables that Slurm's commands read as options, and those of them that the commands get anyway.
_OPTION = re.compile(r"(SLURM|SBATCH|SRUN|SALLOC|SCANCEL|SQUEUE|SCONTROL|SINFO)_")
_MEANT = frozenset(
    {
        *("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_DEBUG_FLAGS", "SLURM_JWT"),
        *("SBATCH_ACCOUNT", "SBATCH_CLUSTERS", "SBATCH_PARTITION", "SBATCH_QOS", "SBATCH_RESERVATION", "SBATCH_WCKEY"),
    }
)


def main() -> int:
    """Handle requests until the standard input ends. Then cancel the job's allocations.

    Returns:
        The exit code: 0 on success, or 1 if an allocation could not be cancelled.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    keeper = Keeper()
    for line in sys.stdin.buffer:
        keeper.take(json.loads(line))
    return keeper.close()


class Keeper:
    """The keeper's state: allocations to cancel at the end (held), and Slurm jobs to report on (watched)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: set[str] = set()
        self._submitting: list[threading.Thread] = []
        self._watched: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._watch, daemon=True).start()

    def take(self, asked: dict[str, Any]) -> None:
        """Handle a request. A request that has to wait for Slurm is handled in a separate thread."""
        if asked["op"] == "hold":
            self._held.add(asked["job"])
        elif asked["op"] == "watch":
            self._watched.put(asked)
        else:
            does = {"submit": self._submit, "again": self._again, "look": self._look, "cancel": self._cancel}
            thread = threading.Thread(target=does[asked["op"]], args=(asked,), daemon=True)
            thread.start()
            if asked["op"] == "submit":
                self._submitting.append(thread)

    def close(self) -> int:
        """Wait for submissions in progress. Then cancel all allocations that are held.

        Returns:
            The exit code: 0 on success, or 1 if an allocation could not be cancelled.
        """
        for thread in self._submitting:
            thread.join()
        until = time.monotonic() + _CANCEL_S
        while self._held:
            for job in sorted(self._held):
                self._cancel({"job": job})
            if self._held:
                if time.monotonic() > until:
                    return 1
                time.sleep(1.0)
        return 0

    def _say(self, asked: dict[str, Any], event: str, **values: Any) -> None:
        line = json.dumps({"id": asked["id"], "event": event, **values}).encode() + b"\n"
        with self._lock:
            try:
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()
            except OSError:  # the supervisor has ended
                pass

    # --- commands ---

    def _submit(self, asked: dict[str, Any]) -> None:
        code, said, error = command(asked["argv"], asked["script"])
        job = said.strip().partition(";")[0]
        if code == 0 and job.isdigit():
            self._held.add(job)
            self._say(asked, "submitted", job=job)
        else:
            self._say(asked, "refused", reason=error)

    def _again(self, asked: dict[str, Any]) -> None:
        command(["scontrol", "requeue", asked["job"]])  # fails without effect if Slurm has requeued the job already
        self._watched.put(asked)

    def _cancel(self, asked: dict[str, Any]) -> None:
        code, _, error = command(["scancel", "--quiet", asked["job"]])
        if code == 0 or "nvalid job id" in error:
            self._held.discard(asked["job"])

    def _look(self, asked: dict[str, Any]) -> None:
        left: float | None = None
        for pause in _END_PAUSES_S:
            time.sleep(pause)
            fields = job_fields(asked["job"])
            state = normalized(fields.get("JobState", ""))
            if state and state != "RUNNING":
                left = kill_wait()
            elif fields.get("EndTime", "").isdigit():
                left = max(0.0, int(fields["EndTime"]) - time.time())
            if left is not None:
                break
        else:
            print(f"Slurm does not say when job {asked['job']} ends: {fields}", file=sys.stderr, flush=True)
        self._say(asked, "state", state=state, left=left)

    # --- the queue ---

    def _watch(self) -> None:
        watched: dict[str, dict[str, Any]] = {}  # job -> the request
        told: dict[str, tuple[str, int | None]] = {}
        pause = _FIRST_S
        while True:
            try:
                asked = self._watched.get(timeout=pause if watched else None)
                pause = _FIRST_S
                watched[asked["job"]] = asked
                while not self._watched.empty():
                    asked = self._watched.get()
                    watched[asked["job"]] = asked
            except queue.Empty:
                pass
            for job, (state, reason, partition) in _states(watched).items():
                if state not in _WAITING:
                    told.pop(job, None)
                    ended = {"nodes": nodes(job)} if state == "RUNNING" else {"state": state, "reason": reason}
                    self._say(watched.pop(job), "running" if state == "RUNNING" else "over", **ended)
                elif pause > 0.5:
                    now = (reason, _position(job, partition))
                    if told.get(job) != now:
                        told[job] = now
                        self._say(watched[job], "pending", reason=now[0], position=now[1])
            pause = min(pause * _SLOWER, _LAST_S)


def _states(jobs: Any) -> dict[str, tuple[str, str, str]]:
    """Return the state, reason and partition of each Slurm job in ``jobs`` that squeue reports.

    A job that Slurm no longer knows has the state ``GONE``. If Slurm does not answer, the result is empty.
    """
    if not jobs:
        return {}
    code, said, error = command(
        ["squeue", "--noheader", "--states=all", f"--jobs={','.join(jobs)}", f"--format={_FORMAT}"]
    )
    found = {}
    for line in said.splitlines():
        job, state, reason, partition = (*line.split("|"), "", "", "")[:4]
        if job in jobs:
            found[job] = (normalized(state), reason, partition)
    if code == 0 or "nvalid job id" in error:
        for job in jobs:  # Slurm has forgotten the job, which ended long ago
            found.setdefault(job, ("GONE", "", ""))
    return found


def normalized(state: str) -> str:
    """Return a Slurm state, with ``RUNNING`` in place of the temporary states of a running allocation."""
    return "RUNNING" if state in _RUNNING else state


def _position(job: str, partition: str) -> int | None:
    """Return a job's position among the pending jobs of a partition. The job at position 1 starts next.

    Return None if the job is not pending.
    """
    argv = ["squeue", "--noheader", "--states=PENDING", "--sort=-p,i", "--format=%A"]
    _, said, _ = command([*argv, f"--partition={partition.partition(',')[0]}"])
    waiting = said.split()
    return waiting.index(job) + 1 if job in waiting else None


def nodes(job: str) -> list[dict[str, str]]:
    """Return the nodes of an allocation. The node of the allocation's batch script is the first one.

    Each node has a ``name`` and an ``address``. The address is "" if this machine cannot resolve the name.
    """
    fields = job_fields(job)
    if not fields.get("NodeList"):  # without a name, scontrol would list all nodes of the cluster
        return []
    _, said, _ = command(["scontrol", "show", "node", "--oneliner", fields["NodeList"]])
    shown = [node for node in map(parse_fields, said.splitlines()) if "NodeName" in node]
    shown.sort(key=lambda node: node["NodeName"] != fields.get("BatchHost"))
    return [
        {"name": node["NodeName"], "address": _resolved(node.get("NodeAddr") or node["NodeName"])} for node in shown
    ]


def _resolved(name: str) -> str:
    try:
        return socket.gethostbyname(name)
    except OSError:
        return ""


def job_fields(job: str) -> dict[str, str]:
    """Return the fields that ``scontrol show job`` prints about a job, with times in seconds since the epoch.

    The result is empty if Slurm does not know the job or does not answer.
    """
    for _ in range(_TRIES):
        code, said, error = command(["scontrol", "show", "job", "--oneliner", job])
        if code == 0 or "nvalid job id" in error:
            break  # if a busy controller has not answered, it may answer the next time
    return parse_fields(said)


def kill_wait() -> float:
    """Return the seconds between SIGTERM and SIGKILL in Slurm's configuration (``KillWait``). The default is 30."""
    _, said, _ = command(["scontrol", "show", "config"])
    found = re.search(r"^KillWait\s*=\s*(\d+)", said, re.MULTILINE)
    return float(found[1]) if found else 30.0


def parse_fields(line: str) -> dict[str, str]:
    """Parse a line of ``Name=value`` pairs."""
    return dict(word.split("=", 1) for word in line.split() if "=" in word)


def configured() -> bool:
    """Return whether this machine has the configuration of a Slurm cluster.

    The function contacts no other machine. A cluster that is configured only in DNS is therefore not found.
    """
    named = any(os.environ.get(name) for name in ("SLURM_CONF", "SLURM_CONF_SERVER"))
    return shutil.which("sbatch") is not None and (named or any(os.path.exists(path) for path in _CONFIGURATIONS))


def environment() -> dict[str, str]:
    """Return the environment variables for Slurm's commands.

    Of Slurm's variables, only those that name the cluster, the account or the queue are passed on. The other variables
    describe the allocation that the caller runs in, or they are options. Such options would change a command's
    behaviour or output (``SBATCH_WAIT``, ``SCANCEL_INTERACTIVE``, ``SQUEUE_FORMAT``).
    """
    own = {name: value for name, value in os.environ.items() if not _OPTION.match(name) or name in _MEANT}
    return {**own, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}


def command(argv: list[str], text: str = "", seconds: float = _COMMAND_S) -> tuple[int, str, str]:
    """Run a Slurm command, and return its exit code, its standard output, and a one-line description of the error.

    The exit code is 127 if the command cannot be started, and 124 if it does not end within ``seconds``.
    """
    try:
        done = subprocess.run(
            argv, input=text, capture_output=True, text=True, env=environment(), timeout=seconds, check=False, cwd="/"
        )
    except OSError as error:
        return 127, "", f"{argv[0]}: {error.strerror}"
    except subprocess.TimeoutExpired:
        return 124, "", f"{argv[0]} has not answered for {seconds:g} s"
    lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
    wrong = re.sub(r"^\w+: (error: )?", "", lines[-1]) if lines else f"{argv[0]} exited with {done.returncode}"
    return done.returncode, done.stdout, wrong


if __name__ == "__main__":
    sys.exit(main())
