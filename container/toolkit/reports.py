"""Convert the end of a process to the failure that users read. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from container.contract.failures import Cause, Failure, describe_end, signal_name
from container.contract.hints import Situation, hints
from container.contract.names import cut
from container.contract.plan import Plan
from container.contract.strategies import CollectiveAllReduce
from container.toolkit import collective_timeouts, traceback_text
from container.toolkit.mpi import daemons
from container.toolkit.process_group import ClusterProcess

#: Messages of a rank that fails because another rank has failed: Horovod's, and TensorFlow's and PyTorch's about a lost
#: peer.
_CONSEQUENCES = (
    "Horovod has been shut down",
    "Collective ops is aborted by",
    "failed to connect to all addresses",
    "stopped sending heartbeats",
    "grpc_status:14",
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection was likely closed. Did the remote server shutdown or crash?",
    "NCCL communicator was aborted",
    "ncclRemoteError",
)


#: Maximum number of characters of an exception's message in a sentence.
_HEADLINE = 300
#: If a message's first line ends with one of these, the message continues on later lines.
_OPENING = ("(", "[", "{")
#: Matches a first line that only says where an exception was caught.
_WRAPPER = re.compile(
    r"(?P<kind>[\w.]+): (?:(?P<tensorflow>in user code:)|Exception encountered when calling .*"
    r"|Caught \w+ in .* worker process \d+\.)$"
)
#: Matches a line that names an exception, and the line before the values that a layer has received.
_NAMED = re.compile(r"\s*[A-Za-z_][\w.]*(?:Error|Exception|Warning|Interrupt|Exit): \S")
_RECEIVED = re.compile(r"\b[Aa]rguments received by ")
_BOLD = re.compile(r"\x1b\[\d*m")

IMPORTER_GONE = (
    "Either the kernel killed that process because memory ran out (see `dmesg`), or a `kill -9` ended it. With "
    "environment={'FLEETFIT_FORK': '0'}, fleetfit starts no such process: each rank imports its modules itself."
)


def is_consequence(member: ClusterProcess) -> bool:
    """Return whether a process's exception or last output shows that another process has failed earlier."""
    said = str(member.exception.get("message")) if member.exception is not None else ""
    if member.exception is None and member.stream is not None:
        said = member.stream.tail[-4096:].decode("utf-8", "replace")
    return any(text in said for text in _CONSEQUENCES)


def of_member(member: ClusterProcess, host: str, situation: Situation | None = None) -> Failure:
    """Return the failure for the end of a process.

    Args:
        member: A process that has ended with an error, or that has reported an uncaught exception.
        host: The name of the process's host.
        situation: Facts about the process's job. None if unknown.
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
        end = "was killed by SIGKILL together with the process that started it"
    if member.importer_gone:
        end = "was killed together with the process that imports modules for the ranks of its machine"
    timed_out = collective_timeouts.describe(text, traceback)
    headline = timed_out or _headline(traceback, member.exception)
    if member.exit_code is None and member.signal is None:
        message = headline or "raised an exception"
    else:
        message = f"{headline} ({end})" if headline else end
    return Failure(
        cause=Cause.PROCESS,
        message=message,
        host=host,
        process=member.name,
        rank=member.rank,
        exit_code=member.exit_code,
        signal=member.signal,
        traceback=_told(traceback, situation or Situation()) if traceback else None,
        log_tail=None if traceback else traceback_text.log_tail(text) or None,
        hints=(
            *((collective_timeouts.HINT,) if timed_out else ()),
            *((IMPORTER_GONE,) if member.importer_gone else ()),
            *hints(text, None if member.importer_gone else member.signal, traceback=traceback, situation=situation),
        ),
    )


def _told(traceback: str, situation: Situation) -> str:
    """Return a traceback as users read it: without fleetfit's frames, and shortened."""
    return traceback_text.shorten(traceback_text.users_own(traceback, code=situation.code, ours=situation.ours))


def of_launcher(member: ClusterProcess, host: str, waiting: list[str]) -> Failure:
    """Return the failure for the end of mpirun or of its daemon.

    Args:
        member: The process of mpirun or of the daemon.
        host: The name of the process's host.
        waiting: The names of the ranks that had not started.
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
            hints=(f"Rank {improper[1]} must shut down MPI (or Horovod) before it ends, and not call os._exit().",),
        )
    message = describe_end(member.exit_code, member.signal)
    if member.exit_code == 0:
        message += " while ranks were running"
    if waiting:
        message += f" before {', '.join(waiting)} started"
    elif (lost := daemons.lost_daemon(text)) is not None:
        message = f"lost its daemon on {lost}, and ended the ranks. The daemon was ended or cannot be reached."
        failure = dataclasses.replace(failure, log_tail=None)
    elif member.exit_code != 0 and not text.strip():
        message += " and printed nothing. After a request to stop (SIGTERM or SIGINT), mpirun ends in the same way."
    return dataclasses.replace(failure, cause=Cause.LAUNCH, message=message, traceback=None)


def not_started(error: OSError, host: str) -> Failure:
    """Return the failure for a program that could not be started."""
    message = f"{error.filename or 'the command'} could not be started: {error.strerror}."
    return Failure(cause=Cause.LAUNCH, message=message, host=host)


def has_lost_daemon(member: ClusterProcess) -> bool:
    """Return whether mpirun ended because it lost a daemon."""
    return member.stream is not None and daemons.lost_daemon(member.stream.tail.decode("utf-8", "replace")) is not None


def is_port_conflict(failure: Failure) -> bool:
    """Return whether a server failed because its fixed port was in use, judged by TensorFlow's or PyTorch's message."""
    text = f"{failure.traceback or ''}{failure.log_tail or ''}"
    return re.search(r"Address already in use|Could not start gRPC server|EADDRINUSE", text) is not None


def lost_ranks(failure: Failure, plan: Plan) -> Failure:
    """Add to a failure a hint that names the ranks to which TensorFlow has lost contact, and return the result.

    Without the hint, the failure of rank 0 in a job with CollectiveAllReduce only says that other tasks are lost.
    Return any other failure unchanged.
    """
    text = failure.traceback or failure.log_tail or ""
    said = re.search(r"tasks are unhealthy \(stopped sending heartbeats\):\s*((?:/job:\S+\s*)+)", text)
    if said is None or plan.strategy != CollectiveAllReduce.name:
        return failure
    tasks = [int(task) for task in re.findall(r"/task:(\d+)", said[1])]
    lost = [f"{process.host}, {process.name}" for process in plan.ranks if process.rank in tasks]
    if not lost:
        return failure
    hint = (
        f"TensorFlow lost contact with {'; '.join(lost)}. A lost rank crashed, was stopped, or got no processor time: "
        "see its log."
    )
    return dataclasses.replace(failure, hints=(hint, *failure.hints))


def _headline(traceback: str | None, exception: Mapping[str, Any] | None) -> str | None:
    """Return the exception's type and the first line of its message, such as ``ValueError: boom``."""
    last = _exception_line(traceback)
    kind = str((exception or {}).get("type") or "")
    if last is None or not kind or last.startswith((kind, kind.rpartition(".")[2])):
        return last
    words = str((exception or {}).get("message") or "").strip().partition("\n")[0]
    if not words or _WRAPPER.match(f"{kind}: {words}"):
        return last
    return cut(f"{kind}: {words}", _HEADLINE)


def _cause_of(said: str, kind: str, lines: Sequence[str]) -> str:
    """Return the line that names the cause, in a message of Keras, TensorFlow or PyTorch whose first line only says
    where the exception was caught.

    TensorFlow and PyTorch's DataLoader print the exception itself in a later line. Keras prints the exception's message
    in bold. If no such line is found, return the first line.

    Args:
        said: The first line of the message.
        kind: The exception's type.
        lines: The other lines of the message.
    """
    end = next((place for place, line in enumerate(lines) if _RECEIVED.search(line)), len(lines))
    named = [line.strip() for line in lines[:end] if _NAMED.match(line) and not _WRAPPER.match(line.strip())]
    bold = [_BOLD.sub("", line).strip() for line in lines[:end] if "\x1b[1m" in line]
    if named:
        return named[-1]
    return f"{kind}: {bold[0]}" if bold and bold[0] else said


def _exception_line(traceback: str | None) -> str | None:
    """Return the line after the frames of the last traceback. If there are no frames, return the last line."""
    lines = [line for line in (traceback or "").splitlines() if line.strip()]
    first = traceback_text.message_start(lines)
    if first is None and (group := traceback_text.group_line(lines)) is not None:
        return cut(group, _HEADLINE)
    if first is None:
        return next((cut(line.strip(), _HEADLINE) for line in lines[::-1] if not line.startswith((" ", "\t"))), None)
    said = lines[first].strip()
    if (wrapper := _WRAPPER.match(said)) is not None and first + 1 < len(lines):
        return cut(_cause_of(said, wrapper["kind"], lines[first + 1 :]), _HEADLINE)
    if said.endswith(_OPENING) and first + 1 < len(lines):
        # The sentence contains a printed value, possibly of many lines; the sentence continues after the value.
        said = f"{said[:200]} … {lines[-1].strip()}"
    return cut(said, _HEADLINE)
