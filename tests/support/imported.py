"""Scripts whose ranks are forked from an importer, and what is compared of them."""

from __future__ import annotations

import json
from typing import Any

from estimators import TrainingJob

#: A module that is installed, and says in which process it was imported.
SLOWLY = """
import os
import numpy
print("slowly was imported", flush=True)
PID = os.getpid()
"""


def told(job: TrainingJob, what: str) -> list[Any]:
    """What the job's importers told under a name."""
    return [event.data[what] for event in job.record.events("importer") if what in event.data]


#: Reports all that a process has from those who started it, and from its interpreter.
LOOK = """
'''Words.'''
from __future__ import annotations
import ctypes, faulthandler, gc, hashlib, inspect, json, linecache, multiprocessing, os, pickle, random, resource
import signal, sys, threading, traceback, warnings
import slowly
import numpy
import aid

def of_main():
    main = vars(sys.modules["__main__"])
    return {name: str(value).partition(" object at ")[0] for name, value in main.items()
            if name.startswith("__") and name != "__warningregistry__"}

def death_signal():
    number = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(number), 0, 0, 0)
    return number.value

class Point:
    def __init__(self, x):
        self.x = x

def double(point):
    return Point(2 * point.x)

def started(method):
    with multiprocessing.get_context(method).Pool(1) as pool:
        return pool.apply(double, (Point(1),)).x

def raised():
    try:
        raise ValueError("of the script's own")
    except ValueError:
        return traceback.format_exc()

def warned():
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warnings.warn("here", stacklevel=2)
    return [found[0].filename, found[0].lineno]

status = dict(line.split(":", 1) for line in open("/proc/self/status"))
seen = {
    "argv": sys.argv,
    "core": open("/proc/self/coredump_filter").read(),
    "cwd": os.getcwd(),
    "pickled": pickle.loads(pickle.dumps(Point(3))).x,
    "raised": raised(),
    "source": [inspect.getsource(double), linecache.getline(__file__, 2), inspect.getfile(Point)],
    "warned": warned(),
    "death": death_signal(),
    "descriptors": [str(fd) for fd in (0, 1, 2) if os.get_inheritable(fd)],
    "environment": dict(os.environ),
    "faulthandler": faulthandler.is_enabled(),
    "flags": str(sys.flags),
    "gc": [gc.isenabled(), gc.get_threshold()],
    "group": os.getpgid(0) == os.getpid(),
    "handlers": {number: str(signal.getsignal(number)).partition(" at ")[0] for number in signal.valid_signals()},
    "hook": sys.excepthook.__qualname__,
    "limits": [resource.getrlimit(number) for number in range(16)],
    "main": of_main(),
    "mask": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    "nice": os.nice(0),
    "open": sorted(os.readlink(f"/proc/self/fd/{fd}").partition(":")[0] for fd in (0, 1, 2)),
    "original": sys.orig_argv,
    "path": sys.path,
    "finders": [getattr(finder, "__name__", type(finder).__name__) for finder in sys.meta_path],
    "session": os.getsid(0) == os.getsid(os.getppid()),
    "signals": [status[name] for name in ("SigBlk", "SigIgn", "SigCgt")],
    "streams": [
        (stream.name, stream.encoding, stream.errors, stream.line_buffering, stream.write_through, stream.seekable(),
         stream.isatty())
        for stream in (sys.stdin, sys.stdout, sys.stderr)
    ],
    "threads": threading.active_count(),
    "umask": os.umask(0o022),
    "warnings": sys.warnoptions,
    "children": open(f"/proc/self/task/{os.getpid()}/children").read(),
    "importer": [name for name in sys.modules if "fleetfit" in name or name.startswith("container")],
}
if __name__ == "__main__":
    aid.report(
        forked=slowly.PID != os.getpid(),
        seen=seen,
        started=[started("spawn"), started("fork")],
        random=[random.random(), numpy.random.rand()],
        key=hashlib.sha256(multiprocessing.current_process().authkey).hexdigest(),
    )
"""


def comparable(job: TrainingJob, seen: dict[str, Any]) -> dict[str, Any]:
    """What was seen, without what differs from job to job."""
    text = json.dumps(seen).replace(job.name, "JOB")
    values: dict[str, Any] = json.loads(text)
    environment = values["environment"]
    environment.pop("FLEETFIT_FORK", None)
    for name, value in environment.items():
        if name.startswith(("PMIX_", "OMPI_MCA_orte", "OMPI_MCA_ess")) or "fleetfit-" in value:
            environment[name] = "…"
    environment["FLEETFIT_EVENTS"] = environment["SM_TRAINING_ENV"] = "…"
    return values
