"""A job's allocations, by way of its keeper (:mod:`estimators.backends.slurm.keeper`)."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from container.system import processes
from container.system.loop import Loop
from estimators.backends.slurm import keeper

#: What an allocation runs by itself, on its first node. It ends, and the allocation with it, when the agent there does,
#: or when none has come: so nothing is held by a job whose supervisor's machine is gone. SIGTERM is for the agents. The
#: agent removes what it has opened, since Slurm may kill the script before it can.
SCRIPT = """#!/bin/sh
trap '' TERM
f="/tmp/fleetfit-slurm-$(id -u)-$SLURM_JOB_ID"
rm -f "$f"
mkfifo -m 600 "$f" || exit 1
(sleep 60; [ ! -p "$f" ] || : > "$f") & waiting=$!
cat "$f" > /dev/null
rm -f "$f"
kill "$waiting"
"""

#: Starts an agent on a node. ``$1``: the interpreter; ``$2``: the allocation, if its script runs there.
#: Variables of Slurm would have Open MPI start its daemons by srun, and count this one task as all there is.
AGENT = r"""
if [ -n "$2" ]; then
  f="/tmp/fleetfit-slurm-$(id -u)-$2"; n=0
  until [ -p "$f" ] || [ "$n" -ge 200 ]; do sleep 0.05; n=$((n + 1)); done
  [ ! -p "$f" ] || { exec 9> "$f"; rm -f "$f"; }
fi
for name in $(env | sed -n 's/^\(SLURM[A-Z0-9_]*\)=.*/\1/p'); do unset "$name"; done
if ! command -v "$1" > /dev/null; then echo "there is no $1 on $(hostname)" >&2; exit 91; fi
exec "$1" -I -c 'import sys
try:
    import container.__main__ as main
except ImportError:
    sys.exit(f"{sys.executable} has no fleetfit")
sys.exit(main.main())' agent host
"""

Event = dict[str, Any]


class Queue:
    """The keeper of a job's allocations, in its supervisor.

    Args:
        loop: The supervisor's loop.
        protected: Where the keeper's pid goes: it lives until the supervisor's end, and a little longer.
    """

    def __init__(self, loop: Loop, protected: set[int]) -> None:
        self._loop = loop
        self._protected = protected
        self._numbers = itertools.count(1)
        self._answers: dict[int, Callable[[Event], None]] = {}
        self._watchers: dict[str, Callable[[Event], None]] = {}
        self._jobs: set[str] = set()
        self._write = -1
        self._read = -1
        self._said = b""
        self._closed = False

    def submit(self, argv: Sequence[str], script: str, answer: Callable[[Event], None]) -> None:
        """Submit a batch script; the answer is ``submitted`` or ``refused``."""

        def submitted(event: Event) -> None:
            if event["event"] == "submitted":
                self._jobs.add(event["job"])
            answer(event)

        self._ask("submit", submitted, argv=list(argv), script=script)

    def watch(self, job: str, told: Callable[[Event], None]) -> None:
        """Have told how a job stands in the queue until it runs or is over."""
        self._watchers[job] = told
        self._send({"op": "watch", "job": job})

    def again(self, job: str, told: Callable[[Event], None]) -> None:
        """Have a job put back into the queue; told as by :meth:`watch`."""
        self._watchers[job] = told
        self._send({"op": "again", "job": job})

    def look(self, job: str, answer: Callable[[Event], None]) -> None:
        """Ask how a job stands."""
        self._ask("look", answer, job=job)

    def cancel(self, job: str) -> None:
        """Cancel a job."""
        self._watchers.pop(job, None)
        self._jobs.discard(job)
        self._send({"op": "cancel", "job": job})

    def close(self) -> None:
        """Have everything cancelled; the keeper does so by itself, and nobody has to wait."""
        self._closed = True
        self._answers.clear()
        self._watchers.clear()
        self._forget()

    # --- the keeper ---

    def _ask(self, operation: str, answer: Callable[[Event], None], **values: Any) -> None:
        number = next(self._numbers)
        self._answers[number] = answer
        self._send({"op": operation, "id": number, **values})

    def _send(self, message: dict[str, Any]) -> None:
        if self._closed:
            return
        if self._write < 0:
            self._start()
        data = json.dumps(message).encode() + b"\n"
        try:
            while data:  # it reads at once: there is no need to wait in the loop
                data = data[os.write(self._write, data) :]
        except OSError:
            pass  # its end is told by what it says

    def _start(self) -> None:
        input_read, self._write = os.pipe()
        self._read, output_write = os.pipe()
        words = [sys.executable, "-I", str(Path(keeper.__file__))]
        pid = processes.spawn(
            words,
            env=dict(os.environ),
            cwd="/",
            stdin=input_read,
            stdout=output_write,
            death_signal=0,
            new_session=True,
        )
        for fd in (input_read, output_write):
            os.close(fd)
        os.set_blocking(self._read, False)
        self._protected.add(pid)
        self._loop.on_child(pid, lambda status: self._protected.discard(pid))
        self._loop.add_reader(self._read, self._readable)
        self._said = b""
        for job in self._jobs:
            self._send({"op": "hold", "job": job})
        for job in self._watchers:
            self._send({"op": "watch", "job": job})

    def _readable(self) -> None:
        try:
            data = os.read(self._read, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self._lost()
            return
        *lines, self._said = (self._said + data).split(b"\n")
        for line in lines:
            event = json.loads(line)
            if "id" in event:
                answer = self._answers.pop(event["id"], None)
            else:
                done = event["event"] != "pending"
                answer = self._watchers.pop(event["job"], None) if done else self._watchers.get(event["job"])
            if answer is not None:
                answer(event)

    def _lost(self) -> None:
        """It was killed: another one takes over, and what it was asked has failed."""
        self._forget()
        waiting, self._answers = self._answers, {}
        for answer in waiting.values():
            answer({"event": "refused", "reason": "the process that talks to Slurm was killed", "state": ""})
        if not self._closed and self._jobs:
            self._start()

    def _forget(self) -> None:
        if self._read >= 0:
            self._loop.remove_reader(self._read)
            os.close(self._read)
            os.close(self._write)
        self._read = self._write = -1
