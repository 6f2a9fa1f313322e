"""What is known of the jobs of a home when a test has failed: status, events, the ends of logs, and processes.

Files and ``/proc`` are read as they are, without the code under test, which may be what is broken.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

#: How much is shown of each part, in lines, and how long a line may be, in characters.
_EVENTS, _LOG_LINES, _WIDTH = 60, 12, 400


def dump(home: Path) -> str:
    """Return what is known of the jobs of a home; empty where it has none.

    Args:
        home: ``$FLEETFIT_HOME``.
    """
    try:
        jobs = sorted(path for path in (home / "jobs").iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError:
        return ""
    text = "\n".join(_job(path) for path in jobs)
    return f"{text}\n{_processes(home)}" if jobs else ""


def _job(folder: Path) -> str:
    parts = [f"=== {folder.name}: {_status(folder / 'status.json')}"]
    events = _events(folder / "events.jsonl")
    if len(events) > _EVENTS:
        parts.append(f"({len(events) - _EVENTS} earlier events)")
    parts += events[-_EVENTS:]
    for path in sorted([*folder.glob("*.log"), *folder.glob("hosts/*/**/*.log")]):
        if lines := _lines(path):
            parts += [f"--- {path.relative_to(folder)}, {len(lines)} lines", *lines[-_LOG_LINES:]]
    return "\n".join(line[:_WIDTH] for line in parts)


def _status(path: Path) -> str:
    try:
        status = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return f"no status ({error})"
    return f"{status.get('TrainingJobStatus')} / {status.get('SecondaryStatus')} {status.get('FailureReason') or ''}"


def _events(path: Path) -> list[str]:
    """A line for each event, with the seconds since the first."""
    found, first = [], 0
    for line in _lines(path):
        try:
            event = json.loads(line)
            first = first or event["time_ns"]
            rank = "" if event.get("rank") is None else f":{event['rank']}"
            found.append(
                f"{(event['time_ns'] - first) / 1e9:8.3f} s  {event['host']}{rank}  {event['kind']}  "
                f"{json.dumps(event.get('data'))}"
            )
        except (ValueError, KeyError, TypeError):
            found.append(line)
    return found


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        return [f"({error})"]


def _processes(home: Path) -> str:
    """The processes whose environment names the home, each below its parent."""
    found: dict[int, tuple[int, str]] = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if f"FLEETFIT_HOME={home}\0".encode() not in Path(f"/proc/{pid}/environ").read_bytes() + b"\0":
                continue
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
            state, parent = stat[stat.rindex(")") + 2 :].split()[:2]
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            waits = Path(f"/proc/{pid}/wchan").read_text() or "-"
        except OSError:
            continue
        found[int(pid)] = int(parent), f"{pid} {state} {waits} {' '.join(words.replace(chr(0), ' ').split())}"

    def below(parent: int, depth: int) -> list[str]:
        children = sorted(pid for pid, (of, _) in found.items() if of == parent)
        return [line for pid in children for line in ("  " * depth + found[pid][1], *below(pid, depth + 1))]

    tops = {parent for parent, _ in found.values()} - set(found)
    lines = [line for top in sorted(tops) for line in below(top, 0)]
    return "\n".join(["=== processes (pid, state, what it waits in, command)", *(line[:_WIDTH] for line in lines)])
