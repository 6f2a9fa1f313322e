"""Helpers of the tests that run real clusters: estimators from script texts, and a job's processes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import leaks
from waiting import until

from container.contract import rules, variables
from container.contract.wire import Event
from container.system import unused
from estimators import MPI, Estimator, PreflightWarning, RunOptions, TensorFlow, TrainingJob
from estimators.backends.slurm import keeper
from estimators.job.fleets import capabilities
from estimators.records.record import job_names

#: What ``aid`` imports that is worth an importer: with FLEETFIT_TEST_IMPORTER=1 the scripts' ranks are forked from one.
IMPORTED = "import numpy\n" if os.environ.get("FLEETFIT_TEST_IMPORTER") else ""
FORKED = {"FLEETFIT_FORK": "1"} if os.environ.get("FLEETFIT_TEST_IMPORTER") else {}

#: Each rank waits after it has said that it is ready.
WAITS = """
import time
import aid
aid.mark(f"ready-{aid.RANK}")
time.sleep(300)
"""

#: Each rank also has a child process in a session of its own, which a job's end must not leave behind.
LEAVES_A_CHILD = """
import subprocess, sys, time
import aid
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True, env={})
aid.mark(f"ready-{aid.RANK}")
time.sleep(300)
"""

#: What every script can import as ``aid``.
AID = '''
"""What the tests' scripts share."""
import json, os, sys, time

HOST = os.environ.get("SM_CURRENT_HOST", "?")



def _rank():
    """As in the plan: a chief (or master) comes before the workers."""
    if number := os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMIX_RANK"):
        return int(number)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return int(os.environ["RANK"])
    if "TF_CONFIG" in os.environ:
        config = json.loads(os.environ["TF_CONFIG"])
        task = config["task"]
        first = "chief" in config["cluster"] or "master" in config["cluster"]
        return task["index"] + (first and task["type"] == "worker")
    return int(HOST.rpartition("-")[2] or 1) - 1


RANK = _rank()
MARKS = os.environ.get("MARKS", ".")


def report(**values):
    """One line that the test reads back by rank."""
    print("report " + json.dumps(values), flush=True)


def mark(name, text=""):
    """Tell the test something, atomically."""
    # Of this rank alone, as several may mark the same; and not like a mark, as a rank may be killed here.
    part = os.path.join(MARKS, f".{HOST}-{os.getpid()}")
    with open(part, "w") as file:
        file.write(str(text))
    os.rename(part, os.path.join(MARKS, name))


def wait_for(name, seconds=60):
    """Wait until the test, or another rank, marks something."""
    until = time.monotonic() + seconds
    while not os.path.exists(os.path.join(MARKS, name)):
        if time.monotonic() > until:
            sys.exit(f"{name} was not marked")
        time.sleep(0.005)
'''


class Make:
    """Makes estimators whose code is given as text.

    Args:
        folder: Where their code and marks go.
        instance_type: Where their jobs run.
        backend_options: Those of the backend.
        environment: Variables of all scripts.
        marks: Where marks go instead, for hosts that do not see the folder.
    """

    def __init__(
        self,
        folder: Path,
        *,
        instance_type: str = "local_process",
        backend_options: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
        marks: Path | None = None,
    ) -> None:
        self.folder = folder
        self.instance_type = instance_type
        self._options = {"backend_options": backend_options} if backend_options else {}
        self._environment = environment or {}
        self.marks = marks or folder / "marks"
        self.marks.mkdir()
        self._count = 0

    def __call__(
        self,
        script: str,
        *,
        hosts: int = 1,
        processes: int | None = None,
        mpi_options: str = "",
        options: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
        files: dict[str, str] | None = None,
        kind: type[Estimator] = TensorFlow,
        **arguments: Any,
    ) -> Estimator:
        """Make an estimator.

        Args:
            script: The text of ``train.py``; it can import ``aid``.
            hosts: How many hosts.
            processes: Ranks per host under MPI; None for the script launcher.
            mpi_options: ``custom_mpi_options``.
            options: Members of RunOptions.
            environment: Variables of the script.
            files: More files of the source folder.
            kind: The class of the estimator.
            arguments: More arguments of the estimator.
        """
        self._count += 1
        code = self.folder / f"code-{self._count}"
        code.mkdir()
        for name, text in {"train.py": textwrap.dedent(script), "aid.py": IMPORTED + AID, **(files or {})}.items():
            (code / name).parent.mkdir(parents=True, exist_ok=True)
            (code / name).write_text(text, encoding="utf-8")
        return kind(
            **{
                "entry_point": "train.py",
                "source_dir": str(code),
                "instance_count": hosts,
                "instance_type": self.instance_type,
                "distribution": (
                    MPI(processes_per_host=processes, custom_mpi_options=mpi_options) if processes else None
                ),
                **({"model_dir": False} if kind is TensorFlow else {}),
                "environment": {"MARKS": str(self.marks), **FORKED, **self._environment, **(environment or {})},
                "run_options": RunOptions(**{**self._options, **(options or {})}),
                **arguments,
            }
        )

    def run(
        self, script: str, *, logs: bool = False, all: bool = False, name: str | None = None, **settings: Any
    ) -> TrainingJob:
        """Run a script to its end."""
        return fit(self(script, **settings), logs=logs, all=all, job_name=name)

    def start(
        self, script: str, *, name: str | None = None, ready: int = 0, inputs: Any = None, **settings: Any
    ) -> TrainingJob:
        """Start a job without a tie and wait for as many ``ready-<rank>`` marks."""
        job = fit(self(script, **settings), inputs, wait=False, job_name=name)
        self.await_ready(ready, job)
        return job

    def await_ready(self, count: int, job: TrainingJob | None = None) -> None:
        """Wait for ``ready-0`` … ``ready-<count-1>``."""

        def over() -> None:
            if job is not None:
                assert job.status == "InProgress", job.describe().get("FailureReason")

        until(lambda: all((self.marks / f"ready-{rank}").exists() for rank in range(count)), check=over)

    def changed(self, **options: object) -> dict[str, Any]:
        """The options of the jobs, with other options of the backend."""
        return {**self._options, "backend_options": {**self._options["backend_options"], **options}}

    @property
    def has_machines(self) -> bool:
        """Whether hosts have files of their own."""
        return not capabilities(self.instance_type).shared_machine

    def marked(self, name: str) -> str:
        """Wait for a mark and read it."""
        until((self.marks / name).exists)
        return (self.marks / name).read_text()

    def mark(self, name: str) -> None:
        """Let scripts that wait for it go on."""
        (self.marks / name).touch()

    def clear(self) -> None:
        """Forget all marks."""
        for path in self.marks.iterdir():
            path.unlink(missing_ok=True)  # what is left of a rank that was killed may be a mark by now


def fit(estimator: Estimator, inputs: Any = None, **arguments: Any) -> TrainingJob:
    """``estimator.fit()`` without the warning that this machine has few cores."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PreflightWarning)
        return estimator.fit(inputs, **arguments)


def slowness() -> float:
    """How many times longer than on an idle core this thread takes now; 1 or more."""
    start, used = time.monotonic(), time.thread_time()
    while (done := time.thread_time() - used) < 0.1:
        pass
    return max(1.0, (time.monotonic() - start) / done)


# --- what a job said ---


def reports(job: TrainingJob) -> dict[int, dict[str, Any]]:
    """The last ``report`` of every rank."""
    found: dict[int, dict[str, Any]] = {}
    for line in job.log_lines():
        if line.rank is not None and line.text.startswith("report "):
            found[line.rank] = {**json.loads(line.text[7:]), "@host": line.host}
    return found


def printed(job: TrainingJob, rank: int | None = None) -> list[str]:
    """The lines of the ranks."""
    return [line.text for line in job.log_lines(rank) if line.rank is not None]


def all_text(job: TrainingJob) -> str:
    """Every line, the toolkit's too."""
    return "\n".join(line.text for line in job.log_lines())


def raw_log(job: TrainingJob, rank: int, host: str = "algo-1") -> bytes:
    """The bytes of a rank's log."""
    return (job.record.log_dir(host, 0) / f"rank-{rank}.log").read_bytes()


# --- a job's processes ---


@dataclasses.dataclass(frozen=True)
class Process:
    """A process, so that another one that gets its pid is not taken for it."""

    pid: int
    started: int
    argv: tuple[str, ...] = dataclasses.field(compare=False)
    environ: dict[str, str] = dataclasses.field(compare=False)
    imports: str = dataclasses.field(default="", compare=False)  # the place of the importer that it is, or a fork of
    name: str = dataclasses.field(default="", compare=False)
    folder: str = dataclasses.field(default="", compare=False)

    @property
    def alive(self) -> bool:
        """Whether it runs: a zombie does not, nor one that has left its memory already and is about to be one."""
        stat = _stat(self.pid)
        if stat is None or stat[0] == "Z" or stat[2] != self.started:
            return False
        try:
            return bool(Path(f"/proc/{self.pid}/cmdline").read_bytes())
        except OSError:
            return False

    @property
    def is_kept(self) -> bool:
        """Whether it is an importer for other tests' jobs as well."""
        shared = os.environ.get(variables.KEEP_IMPORTERS)
        return shared is not None and self.kind == "root" and Path(self.imports).parent == Path(shared)

    @property
    def host(self) -> str:
        """The host that it belongs to; of a remote shell, the one that it reaches."""
        if self.kind == "rsh":
            return next((word for word in self.argv if word.startswith("algo-")), "?")
        match = re.search(r"/hosts/(algo-\d+)/", (self.folder or self.environ.get("SAGEMAKER_BASE_DIR", "")) + "/")
        return match[1] if match else "?"

    @property
    def kind(self) -> str:
        """``toolkit``, ``mpirun``, ``orted``, ``rsh``, ``wrapper``, ``server``, ``rank``, ``other``; ``importer`` for a
        host's, ``root`` for the machine's.
        """
        if self.imports:
            kinds = {"fleetfit-import": "root", "fleetfit-host": "importer", "fleetfit-server": "server"}
            return kinds.get(self.name, "rank")
        words = [os.path.basename(word) for word in self.argv]
        if words and words[0] in ("mpirun", "orted", "prterun", "prted") and "--version" not in words:
            return words[0]
        if "fleetfit-rank" in words[:3]:
            return "wrapper"
        for word, kind in (("train", "toolkit"), ("rsh", "rsh"), ("rank", "wrapper"), ("serve", "server")):
            if "__main__.py" in words and words[words.index("__main__.py") + 1 :][:1] == [word]:
                return kind
        return "rank" if "train.py" in words and "-c" not in words else "other"

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def kill_if_alive(self) -> None:
        """SIGKILL, unless it is gone already."""
        with contextlib.suppress(ProcessLookupError):
            if self.alive:
                self.kill()


def _stat(pid: int) -> tuple[str, int, int] | None:
    """State, parent and start time."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], int(fields[1]), int(fields[19])


def process(pid: int) -> Process | None:
    """What a pid is now; None when it is gone."""
    stat = _stat(pid)
    if stat is None or stat[0] == "Z":
        return None
    try:
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
        environ = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    given = dict(item.split("=", 1) for item in environ if "=" in item)
    if not (imports := given.get(variables.IMPORTER, "")):
        return Process(pid, stat[2], tuple(argv), given)
    name, folder = unused.read_proc(pid, "comm").strip(), unused.read_proc_link(pid, "cwd")
    return Process(pid, stat[2], tuple(argv), given, imports.partition(":")[2], name, folder)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def below(*roots: int) -> list[Process]:
    """Living descendants of processes."""
    children: dict[int, list[int]] = {}
    for pid in _pids():
        stat = _stat(pid)
        if stat is not None and stat[0] != "Z":
            children.setdefault(stat[1], []).append(pid)
    found: list[Process] = []
    queue = list(roots)
    while queue:
        for pid in children.get(queue.pop(), ()):
            queue.append(pid)
            one = process(pid)
            if one is not None:
                found.append(one)
    return found


#: Says which processes run on machines of the tests' own, which are no descendants of a supervisor.
on_machines: Callable[[], list[int]] = list


_KEEPER = str(Path(keeper.__file__))


def _is_slurms(one: Process) -> bool:
    """Whether a process is of an allocation, rather than of the job in it: no agent hands Slurm's variables on."""
    first = one.argv[0] if one.argv else ""
    return (
        "SLURM_JOB_ID" in one.environ
        or first == "srun"
        or first.startswith("slurmstepd")
        or one.argv[-1:] == (_KEEPER,)
    )


def marked(name: str) -> list[Process]:
    """Living processes that carry the job's mark, of jobs in this test's home."""
    found = []
    for pid in _pids():
        one = process(pid)
        if one is None:
            continue
        home = os.environ["FLEETFIT_HOME"]
        ours = one.environ.get("FLEETFIT_JOB") == name and one.environ.get("FLEETFIT_HOME") == home
        if ours or one.folder.startswith(f"{home}/jobs/{name}/"):
            found.append(one)
    return found


def supervisor(job: TrainingJob) -> Process:
    """The job's supervisor."""
    one = process(job.record.read_status()["Fleetfit"]["supervisor_pid"])
    assert one is not None
    return one


class Snapshot:
    """All processes of a running job, and its temporary files, to see whether they go.

    Args:
        job: The job; it must be running.
        names: ``(kind, host or None, rank or None)`` -> process.
    """

    def __init__(self, job: TrainingJob) -> None:
        self.job = job
        self.supervisor = supervisor(job)
        self.members = self._members()
        self.files = self._files()

    def _members(self) -> set[Process]:
        """The processes of this moment. One that has just been forked has its parent's words until it executes.

        One that is just being executed has none, and cannot be told from one that collects provenance.
        """
        family = [one for one in below(self.supervisor.pid) if one.argv and one.argv != self.supervisor.argv]
        toolkits = {one.pid for one in family if one.kind == "toolkit"}
        forked = {one for one in family if one.pid in toolkits and (_stat(one.pid) or ("", 0, 0))[1] in toolkits}
        there = on_machines()
        found = [*(process(pid) for pid in there), *below(*there)]  # a script's helper may have no environment
        # A host's agent, which ends after it, is of the machine; each test looks whether it went. So is an allocation.
        family += [one for one in found if one is not None and "agent" not in one.argv]
        family = [one for one in family if not _is_slurms(one) and not one.is_kept]
        collectors = {one for one in family if "provenance" in " ".join(one.argv)}
        collectors |= set(below(*(one.pid for one in collectors)))
        return {*family, *marked(self.job.name)} - collectors - forked

    def _files(self) -> set[Path]:
        """Temporary folders of the job, and what its processes have mapped of shared memory."""
        found = set()
        for one in self.members:
            if folder := one.environ.get("FLEETFIT_RUNTIME_DIR"):
                runtime = Path(folder).parent
                found |= {runtime, *Path("/dev/shm").glob(f"{runtime.name}-*")}
            if (folder := one.environ.get("FLEETFIT_IMPORTERS")) and "FLEETFIT_KEPT_FOR" not in one.environ:
                found.add(Path(folder))
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{one.pid}/maps").read_text().splitlines():
                    if "/dev/shm/" in line and "(deleted)" not in line:
                        found.add(Path(line[line.index("/dev/shm/") :]))
        return found

    def find(self, kind: str, host: str | None = None) -> Process:
        """One process by what it is; waits for one that has yet to start, as a server may when its worker is ready."""
        found: list[Process] = []

        def there() -> bool:
            self.members = self._members() | self.members  # of two that are equal, the one as it is now
            found[:] = [one for one in self.members if one.kind == kind and host in (None, one.host)]
            return bool(found)

        with contextlib.suppress(AssertionError):
            until(there)
        assert found, f"no {kind} of {host} among {[(one.kind, one.host) for one in self.members]}"
        return found[0]

    def started(self, number: int) -> Event:
        """The last event of a rank's start; waits for the record to have it, as a rank may be ready before that."""
        found: list[Event] = []

        def there() -> bool:
            found[:] = [event for event in self.job.record.events("process_started") if event.rank == number]
            return bool(found)

        until(there)
        return found[-1]

    def rank(self, number: int) -> Process:
        """The process of a rank."""
        found: list[Process] = []

        def there() -> bool:
            pid = self.started(number).data["pid"]
            self.members = self._members() | self.members
            found[:] = [one for one in self.members if one.pid == pid]
            return bool(found)

        until(there)
        return found[0]

    def left(self) -> list[Process]:
        """What is still alive; the supervisor's client of a cluster ends by itself with it."""
        return [
            one
            for one in {*self.members, *marked(self.job.name)}
            if one.alive and not "".join(one.argv[-1:]).endswith(("ray/driver.py", "spark/driver.py"))
        ]

    def await_end(self) -> None:
        """Wait until all processes are gone."""
        until(lambda: not self.left(), say=lambda: [(one.kind, one.argv) for one in self.left()])

    def files_left(self) -> list[Path]:
        """Temporary files that are still there."""
        return [path for path in self.files if path.exists()]

    def await_tidy(self) -> None:
        """Wait until its temporary files are gone."""
        until(
            lambda: not self.files_left(),
            say=lambda: [str(one) for path in self.files_left() for one in (path, *path.rglob("*"))],
        )


def await_terminal(job: TrainingJob) -> str:
    """Wait until the record has a terminal status, and return it."""
    until(lambda: job.status in ("Completed", "Failed", "Stopped"))
    return str(job.status)


def kill_everything_of(home: Path) -> None:
    """Kill what still runs of the jobs of a home."""
    # Tuning jobs first, which start others.
    order = sorted(
        _pids(), key=lambda pid: "estimators.tuning.process" not in (one.argv if (one := process(pid)) else ())
    )
    for pid in order:
        one = process(pid)
        if one is not None and one.environ.get("FLEETFIT_HOME") == str(home) and pid != os.getpid() and not one.is_kept:
            supervises = any(
                name in " ".join(one.argv) for name in ("estimators.supervisor.main", "estimators.tuning.process")
            )
            if supervises or one.imports or "FLEETFIT_JOB" in one.environ:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    leaks.jobs_were_killed()


# --- other Pythons ---


def small_venv(folder: Path, *, with_packages: bool = True) -> Path:
    """A venv without MPI, made in a moment; returns its Python.

    Args:
        folder: Where.
        with_packages: Whether it sees the packages of the tests' own environment.
    """
    base = Path(getattr(sys, "_base_executable", sys.executable))
    (folder / "bin").mkdir(parents=True)
    packages = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    packages.mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    (folder / "bin" / "python").symlink_to(base)
    if with_packages:
        (packages / "tests.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    return folder / "bin" / "python"


# --- callers: other processes that use the public API ---


class Caller:
    """Another Python process that runs a program text, in a session of its own.

    Args:
        program: The program; ``estimator`` and ``fit`` are there.
        estimator: What ``estimator`` shall be.
        folder: Where its output goes.
    """

    def __init__(self, program: str, estimator: TensorFlow, folder: Path, *, python: Iterable[str] = ()) -> None:
        settings = estimator.settings
        arguments = {
            "entry_point": settings.entry_point,
            "source_dir": settings.source_dir,
            "instance_count": settings.instance_count,
            "instance_type": settings.instance_type,
            "distribution": settings.distribution.to_dict() if settings.distribution else None,
            "model_dir": False,
            "environment": dict(settings.environment),
        }
        options = rules.to_dict(settings.run_options)
        text = (
            "import json, signal, sys, warnings\n"
            # Whoever started the tests may ignore it (nohup), and what is ignored is inherited.
            "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
            "warnings.simplefilter('ignore')\n"
            "from estimators import *\n"
            f"estimator = TensorFlow(**{arguments!r}, run_options=RunOptions(**{options!r}))\n"
            + textwrap.dedent(program)
        )
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"caller-{time.monotonic_ns()}.py"
        path.write_text(text, encoding="utf-8")
        self.output = path.with_suffix(".out")
        self.errors = path.with_suffix(".err")
        with self.output.open("wb") as out, self.errors.open("wb") as err:
            self.process = subprocess.Popen(
                [*(python or (sys.executable,)), str(path)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                cwd=folder,
            )

    def job(self, name: str) -> TrainingJob:
        """The handle of the job that it starts."""

        def alive() -> None:
            assert self.process.poll() is None, self.errors.read_text()

        until(lambda: name in job_names(), check=alive)
        return TrainingJob.attach(name)

    def wait(self, seconds: float = 60.0) -> int:
        """Its exit code."""
        return self.process.wait(seconds)
