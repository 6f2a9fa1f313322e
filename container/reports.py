"""From how a process ended to the failure that users read. Pure."""

from __future__ import annotations

import dataclasses
import re
import signal
from collections.abc import Mapping
from typing import Any

from container import traceback_text
from container.contract.failures import Cause, Failure, describe_end, signal_name
from container.contract.plan import Plan
from container.contract.strategies import CollectiveAllReduce
from container.gang import Member

#: Text in the output's tail -> hint.
_HINTS: tuple[tuple[str, str], ...] = (
    (
        r"No module named '(horovod|mpi4py|tensorflow|tf_keras)'",
        "{0} is not installed in the Python that runs the job: `fleetfit doctor` says what is missing and how to get "
        "it.",
    ),
    (
        r"No module named 'encodings'",
        "Python does not find its own files: PYTHONHOME or PYTHONPATH is wrong in the job's environment.",
    ),
    (r"No module named '([\w.]+)'", "add {0} to a requirements.txt in source_dir, or install it."),
    (
        r"unrecognized arguments: (.*)",
        "every hyperparameter reaches the script as an argument: declare {0} in its argument parser, or use "
        "parse_known_args().",
    ),
    (r"No space left on device", "the disk is full: `fleetfit clean` frees what old jobs and caches hold."),
    (
        r"ResourceExhaustedError|OOM when allocating",
        "the device ran out of memory: a smaller batch size, or fewer processes per host, needs less.",
    ),
    (
        r"Address already in use",
        "another program holds the port: let the system choose one (port 0), or end that program.",
    ),
)

_SIGNAL_HINTS = {
    signal.SIGKILL: (
        "SIGKILL comes from the kernel when memory runs out (see `dmesg`), or from somebody's kill -9. "
        "Fewer processes per host or a smaller batch size need less memory."
    ),
    signal.SIGSEGV: (
        "SIGSEGV is a crash in native code: often two libraries that do not fit together, such as Horovod built "
        "against another TensorFlow or MPI. `fleetfit doctor --deep` checks that."
    ),
    signal.SIGILL: "SIGILL: the program was built for another processor than this one.",
    signal.SIGBUS: "SIGBUS is often a full /dev/shm: give the container more shared memory.",
    signal.SIGABRT: "SIGABRT: a native library gave up; its last words are in the log.",
}


#: What a rank says that fails because another one has: Horovod's words, and TensorFlow's of a peer that it lost.
_CONSEQUENCES = (
    "Horovod has been shut down",
    "Collective ops is aborted by",
    "failed to connect to all addresses",
    "stopped sending heartbeats",
    "grpc_status:14",
)


def is_consequence(member: Member) -> bool:
    """Whether a process's exception or last words say that another one failed before it."""
    said = str(member.exception.get("message")) if member.exception is not None else ""
    if member.exception is None and member.stream is not None:
        said = member.stream.tail[-4096:].decode("utf-8", "replace")
    return any(text in said for text in _CONSEQUENCES)


def of_member(member: Member, host: str) -> Failure:
    """The failure that a process's end is.

    Args:
        member: A process that ended with an error, or that reported an uncaught exception.
        host: The host it ran on.
    """
    tail = member.stream.tail if member.stream is not None else b""
    text = tail.decode("utf-8", "replace")
    traceback = None
    if member.exception is not None:
        traceback = str(member.exception.get("traceback") or "") or None
    elif member.signal is None:
        traceback = traceback_text.last_traceback(text)
    if member.start_error is not None:
        return Failure(
            cause=Cause.LAUNCH,
            message=f"the command could not be started: {member.start_error}.",
            host=host,
            process=member.name,
            rank=member.rank,
            exit_code=member.exit_code,
        )
    end = describe_end(member.exit_code, member.signal)
    if member.vanished:
        end = "was killed by SIGKILL together with its wrapper"
    if member.exit_code is None and member.signal is None:
        message = _headline(traceback, member.exception) or "raised an exception"
    else:
        headline = _headline(traceback, member.exception)
        message = f"{headline} ({end})" if headline else end
    return Failure(
        cause=Cause.PROCESS,
        message=message,
        host=host,
        process=member.name,
        rank=member.rank,
        exit_code=member.exit_code,
        signal=member.signal,
        traceback=traceback,
        log_tail=None if traceback else traceback_text.log_tail(text) or None,
        hints=hints(text, member.signal),
    )


def of_launcher(member: Member, host: str, waiting: list[str]) -> Failure:
    """The failure that the end of mpirun, or of its daemon, is.

    Args:
        member: The program.
        host: The host it ran on.
        waiting: The ranks that had not started.
    """
    failure = of_member(member, host)
    if member.signal is not None:
        return dataclasses.replace(failure, message=f"was killed by {signal_name(member.signal)}")
    text = member.stream.tail.decode("utf-8", "replace") if member.stream is not None else ""
    improper = re.search(r"due to process rank (\d+) with PID \d+ on\s+node \S+ exiting improperly", text)
    if improper is not None:
        return dataclasses.replace(
            failure,
            message=f"rank {improper[1]} exited with code 0 without MPI_Finalize, and mpirun ended the others.",
            log_tail=None,
            hints=(f"Rank {improper[1]} must end like the others: no os._exit(), and MPI (or Horovod) shut down.",),
        )
    message = describe_end(member.exit_code, member.signal)
    if member.exit_code == 0:
        message += " while ranks were running"
    if waiting:
        message += f" before {', '.join(waiting)} started"
    return dataclasses.replace(failure, cause=Cause.LAUNCH, message=message, traceback=None)


def is_port_conflict(failure: Failure) -> bool:
    """Whether a server that cannot choose its port itself found it taken (TensorFlow's gRPC servers' words)."""
    text = f"{failure.traceback or ''}{failure.log_tail or ''}"
    return re.search(r"Address already in use|Could not start gRPC server", text) is not None


def lost_ranks(failure: Failure, plan: Plan) -> Failure:
    """With a hint on whom TensorFlow has lost, where rank 0 of a collective only reports it."""
    text = failure.traceback or failure.log_tail or ""
    said = re.search(r"tasks are unhealthy \(stopped sending heartbeats\):\s*((?:/job:\S+\s*)+)", text)
    if said is None or plan.strategy != CollectiveAllReduce.name:
        return failure
    tasks = [int(task) for task in re.findall(r"/task:(\d+)", said[1])]
    lost = [f"{process.host}, {process.name}" for process in plan.ranks if process.rank in tasks]
    if not lost:
        return failure
    hint = (
        f"TensorFlow heard nothing more of {'; '.join(lost)}: what went wrong there is in its log. It crashed, was "
        "stopped, or got no processor time."
    )
    return dataclasses.replace(failure, hints=(hint, *failure.hints))


def hints(text: str, killed_by: int | None = None) -> tuple[str, ...]:
    """What the user may do, from the end of the output and the signal."""
    found: list[str] = []
    for pattern, hint in _HINTS:
        match = re.search(pattern, text)
        if match is not None and len(found) < 2:
            groups = [group.strip()[:200] for group in match.groups()]
            line = hint.format(*groups)
            if not any(line.split(":")[0] == other.split(":")[0] for other in found):
                found.append(line)
            if "No module" in pattern:
                break
    if killed_by in _SIGNAL_HINTS:
        found.append(_SIGNAL_HINTS[signal.Signals(killed_by)])
    return tuple(found)


def _headline(traceback: str | None, exception: Mapping[str, Any] | None) -> str | None:
    """The exception's type and the first line of its message: ``ValueError: boom``."""
    last = _exception_line(traceback)
    kind = str((exception or {}).get("type") or "")
    if last is None or not kind or last.startswith((kind, kind.rpartition(".")[2])):
        return last
    words = str((exception or {}).get("message") or "").strip().partition("\n")[0]
    return f"{kind}: {words}"[:300] if words else last


def _exception_line(traceback: str | None) -> str | None:
    """The line behind the frames of the last traceback; without frames, the last one."""
    lines = [line for line in (traceback or "").splitlines() if line.strip()]
    headers = [number for number, line in enumerate(lines) if line.startswith("Traceback ")]
    words = lines[headers[-1] + 1 :] if headers else lines[::-1]
    return next((line.strip()[:300] for line in words if not line.startswith((" ", "\t"))), None)
