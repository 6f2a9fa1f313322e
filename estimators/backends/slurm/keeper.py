"""Speaks with Slurm for a job's supervisor, and cancels the job's allocations when that is gone, however it went.

    python -I keeper.py

It is a program of its own, of the standard library alone: the supervisor's loop never waits for Slurm, and where the
supervisor was killed somebody is left to empty the queue. A submission that is under way then is waited for first, so
none escapes. What is asked of it comes as JSON lines with an ``op``, and so do its answers, each an ``event`` with the
``id`` of the question:

* ``submit``: ``argv``, ``script``; answered by ``submitted`` with ``job``, or ``refused`` with ``reason``;
* ``watch``: ``job``; answered by ``pending`` with ``reason`` and ``position`` when these change, and in the end by
  ``running`` with ``nodes`` (name and address, that of its batch script first), or ``over`` with ``state``;
* ``again``: ``job``: put what Slurm takes, or has taken, back into the queue; answered like ``watch``;
* ``look``: ``job``; answered by ``state``: ``state``, and ``left`` (seconds until what it runs is killed, if that is
  known);
* ``hold``: ``job``: cancel it at the end; ``cancel``: ``job``: cancel it now. Neither is answered.
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

#: How long a command of Slurm's may take, in seconds: a controller that is restarted answers after some time.
_COMMAND_S = 60.0
#: How often a question that the controller does not answer is put to it.
_TRIES = 3
#: After so many seconds each it is asked when an allocation ends that Slurm has signalled: it may tell nodes first.
_END_PAUSES_S = (0.0, 0.1, 0.4)
#: From one look at the queue to the next, in seconds: a job that starts at once is seen at once, and a controller with
#: thousands of users not asked more often than people do.
_FIRST_S, _LAST_S, _SLOWER = 0.05, 5.0, 1.3
#: How long cancelling is tried again where Slurm does not answer, in seconds.
_CANCEL_S = 600.0
#: States in which an allocation is not over.
_WAITING = frozenset(
    {"PENDING", "CONFIGURING", "COMPLETING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
)
#: Where a configuration lies: Debian's place, its old one, an own build's, and where slurmd keeps what it was sent.
_CONFIGURATIONS = (
    "/etc/slurm/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/usr/local/etc/slurm.conf",
    "/run/slurm/conf/slurm.conf",
)
#: States of a running allocation that pass by themselves, as while a signal is on its way to it.
_RUNNING = frozenset({"RUNNING", "SIGNALING", "RESIZING"})
_FORMAT = "%A|%T|%r|%P"
#: Variables that Slurm's commands take as options.
_OPTION = re.compile(r"(SLURM|SBATCH|SRUN|SALLOC|SCANCEL|SQUEUE|SCONTROL|SINFO)_")
_MEANT = frozenset(
    {
        *("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_DEBUG_FLAGS", "SLURM_JWT"),
        *("SBATCH_ACCOUNT", "SBATCH_CLUSTERS", "SBATCH_PARTITION", "SBATCH_QOS", "SBATCH_RESERVATION", "SBATCH_WCKEY"),
    }
)


def main() -> int:
    """Serve until the input ends, then cancel what is held.

    Returns:
        0, or 1 when something could not be cancelled.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    keeper = Keeper()
    for line in sys.stdin.buffer:
        keeper.take(json.loads(line))
    return keeper.close()


class Keeper:
    """What is held, and what is watched."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: set[str] = set()
        self._submitting: list[threading.Thread] = []
        self._watched: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._watch, daemon=True).start()

    def take(self, asked: dict[str, Any]) -> None:
        """Do what is asked, without holding up what follows."""
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
        """Cancel everything; a submission that is under way is waited for."""
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
            except OSError:  # nobody hears it any more
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
        command(["scontrol", "requeue", asked["job"]])  # Slurm may have done so already
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
        watched: dict[str, dict[str, Any]] = {}  # job -> the question
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
    """Return state, reason and partition of those that Slurm has told of."""
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
        for job in jobs:  # it is over for so long that Slurm has forgotten it
            found.setdefault(job, ("GONE", "", ""))
    return found


def normalized(state: str) -> str:
    """Return a state, RUNNING for those that a running allocation has for a moment."""
    return "RUNNING" if state in _RUNNING else state


def _position(job: str, partition: str) -> int | None:
    """Return the place among those that wait for the partition, the next one to start being the first."""
    argv = ["squeue", "--noheader", "--states=PENDING", "--sort=-p,i", "--format=%A"]
    _, said, _ = command([*argv, f"--partition={partition.partition(',')[0]}"])
    waiting = said.split()
    return waiting.index(job) + 1 if job in waiting else None


def nodes(job: str) -> list[dict[str, str]]:
    """Return the nodes of an allocation: names and addresses ("": not known here), that of its batch script first."""
    fields = job_fields(job)
    if not fields.get("NodeList"):  # without a name Slurm would show all nodes that it has
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
    """Return what Slurm tells of a job, times in seconds since the epoch; nothing if it does not know it."""
    for _ in range(_TRIES):
        code, said, error = command(["scontrol", "show", "job", "--oneliner", job])
        if code == 0 or "nvalid job id" in error:
            break  # and else a controller that is busy may answer the next time
    return parse_fields(said)


def kill_wait() -> float:
    """Return how long Slurm waits from SIGTERM to SIGKILL, in seconds."""
    _, said, _ = command(["scontrol", "show", "config"])
    found = re.search(r"^KillWait\s*=\s*(\d+)", said, re.MULTILINE)
    return float(found[1]) if found else 30.0


def parse_fields(line: str) -> dict[str, str]:
    """Read a line of ``Name=value`` pairs."""
    return dict(word.split("=", 1) for word in line.split() if "=" in word)


def configured() -> bool:
    """Return whether this machine knows of a cluster, without asking it; one that only DNS knows of is not seen."""
    named = any(os.environ.get(name) for name in ("SLURM_CONF", "SLURM_CONF_SERVER"))
    return shutil.which("sbatch") is not None and (named or any(os.path.exists(path) for path in _CONFIGURATIONS))


def environment() -> dict[str, str]:
    """Return the variables for Slurm's commands.

    Of the caller's, those count that say which cluster is meant, and who pays in which queue. Others describe the
    allocation that the caller is in, or are options that would change what a command does or prints (``SBATCH_WAIT``,
    ``SCANCEL_INTERACTIVE``, ``SQUEUE_FORMAT``).
    """
    own = {name: value for name, value in os.environ.items() if not _OPTION.match(name) or name in _MEANT}
    return {**own, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}


def command(argv: list[str], text: str = "", seconds: float = _COMMAND_S) -> tuple[int, str, str]:
    """Run a command of Slurm's; return its exit status, output, and what was wrong as one line."""
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
