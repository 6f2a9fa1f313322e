"""What ``fit()`` in containers costs: a one-second script on two of them, beside the official SDK's local mode and two
bare ``docker run``; and the speed of Horovod over two, beside the same mpirun by hand, by ssh, in two containers of the
same image."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import runpy
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import harness, steps
from benchmarks.harness import Bar, Numbers, Quiet, Row, median_with_interval
from container.launchers.mpi import RANK_PROGRAM
from estimators import RunOptions, TensorFlow
from estimators.backends.docker import job_secrets
from estimators.backends.docker.containers import JOB_LABEL, ContainerPlan
from estimators.backends.docker.engine import Engine
from estimators.backends.docker.options import Mount
from estimators.backends.images.base import BASE
from estimators.backends.images.engine import ImageEngine
from estimators.backends.images.errors import EngineError
from estimators.backends.images.toolkit import IMAGE

_SCRIPT = "import time\nprint('first line', time.time(), flush=True)\ntime.sleep(1)\n"
#: The official SDK 2.x's local mode for the same job, where it cannot run: seconds, measured on a quiet machine of this
#: kind (sagemaker 2.257.7, a one-second job).
_OFFICIAL_S = 3.1
_OFFICIAL = "the official SDK's fit()"
_OFFICIAL_OURS = "the official SDK's fit() of our image"
#: Makes the environment of the official SDK if it is not there, and prints its Python.
_CLIENTS = harness.HERE.parent / "tests" / "service" / "clients.py"
#: Makes the image with the official toolkit.
_OFFICIAL_IMAGE = harness.HERE.parent / "tests" / "containers" / "official_image.py"
_OFFICIAL_TIMEOUT_S = 120
_AGAINST_OFFICIAL = Bar(limit=0.5)
_AGAINST_DOCKER = Bar(limit=1.5)
_WARM = Bar(limit=0.5)
_STEPS = Bar(limit=0.97, at_least=True)
#: Most of a run is its start, some fifteen seconds in which nothing is timed: few rounds keep the whole below five
#: minutes, on cores of one's own.
_STEPS_ROUNDS = 3
#: Where both ways have the scripts.
_CODE = "/opt/ml/code"


def run(options: argparse.Namespace) -> None:
    """Measure and record."""
    rounds = options.alternations or 10
    quiet = Quiet(options.patience, engine_seconds)
    with harness.own_home(), tempfile.TemporaryDirectory(prefix="bench-fleetfit-") as folder:
        (Path(folder) / "sleep.py").write_text(_SCRIPT)
        ways: dict[str, Callable[[], Numbers]] = {
            "docker run": lambda: _bare(folder),
            "fit()": lambda: _fit(folder),
            "warm fit()": lambda: _fit(folder, keep=600),
        }
        why = ""
        try:
            python, image = _official_python(), _official_image()
        except _CannotRunError as error:
            why = str(error)
        else:
            ways[_OFFICIAL] = lambda: _official(python, image, folder)
            ways[_OFFICIAL_OURS] = lambda: _official(python, IMAGE, folder)
        _fit(folder, keep=600)  # the pool's containers are there from here on
        try:
            values = harness.alternate(rounds, ways, quiet)
        finally:
            _fit(folder, keep=3)  # lets go of them
    harness.record("containers", rows_of(values, why), {"seconds": values}, quiet, dry=options.dry)


def engine_seconds(cgroups: Path = Path("/sys/fs/cgroup"), processes: Path = Path("/proc")) -> float:
    """Processor seconds that the engine and its containers have used, as far as it can be seen.

    Of containers, those that are gone included, by the control group that the engine's driver ``cgroupfs`` puts them
    below; with the driver ``systemd`` there is none of all, and they count as others' work.
    """
    seconds = 0.0
    if (usage := _text(cgroups / "cpuacct" / "docker" / "cpuacct.usage")) is not None:
        seconds += int(usage) / 1e9
    elif (usage := _text(cgroups / "docker" / "cpu.stat")) is not None:
        seconds += int(dict(line.split() for line in usage.splitlines())["usage_usec"]) / 1e6
    for process in processes.glob("[0-9]*"):
        if (_text(process / "comm") or "").strip() in ("dockerd", "containerd"):
            fields = (_text(process / "stat") or "").rpartition(")")[2].split()
            seconds += sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")
    return seconds


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def rows_of(values: Mapping[str, Sequence[Numbers]], why: str = "") -> list[Row]:
    """The rows of what was measured. Pure.

    Args:
        values: Way -> its numbers, by round.
        why: Why the official SDK's local mode could not be measured, if it is not among them.
    """
    bare = [numbers["seconds"] for numbers in values["docker run"]]
    cold = [numbers["seconds"] for numbers in values["fit()"]]
    warm = [numbers["first line"] for numbers in values["warm fit()"]]
    medians = {way: statistics.median(of["seconds"] for of in found) for way, found in values.items()}
    rows = []
    against = [(_OFFICIAL, "the official SDK's local mode with its toolkit"), (_OFFICIAL_OURS, "the same of our image")]
    for way, name in against if _OFFICIAL in values else [("", f"the official local mode's {_OFFICIAL_S} s ({why})")]:
        theirs = [numbers["seconds"] for numbers in values[way]] if way else [_OFFICIAL_S] * len(cold)
        rows.append(
            Row(
                what=f"a one-second script on 2 containers, fit() ÷ {name}",
                estimate=median_with_interval([ours / other for ours, other in zip(cold, theirs, strict=True)]),
                unit="",
                bar=_AGAINST_OFFICIAL if way != _OFFICIAL_OURS else None,
                beside=medians,
            )
        )
    return [
        *rows,
        Row(
            what="a one-second script on 2 containers, fit() − two bare docker run at once",
            estimate=median_with_interval([mine - theirs for mine, theirs in zip(cold, bare, strict=True)]),
            unit="s",
            bar=_AGAINST_DOCKER,
            beside=medians,
        ),
        Row(
            what="from calling fit() to the script's first line, 2 warm containers",
            estimate=median_with_interval(warm),
            unit="s",
            bar=_WARM,
        ),
    ]


class _CannotRunError(Exception):
    """The official SDK's local mode cannot run here; the message says why."""


def _official_python() -> Path:
    """The Python that has the official SDK; its environment is made if it is not there."""
    if shutil.which("docker-compose") is None:  # the SDK takes this one or the plugin; our cleaning up, this one
        raise _CannotRunError("docker-compose is not installed")
    done = subprocess.run([sys.executable, str(_CLIENTS), "sagemaker-2"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise _CannotRunError((done.stderr.strip().splitlines() or ["sagemaker 2.x cannot be installed"])[-1])
    return Path(done.stdout.strip().splitlines()[-1])


def _official_image() -> str:
    """An image with the official toolkit, made on the base that `fleetfit image base` makes."""
    engine = ImageEngine()
    names = runpy.run_path(str(_OFFICIAL_IMAGE))
    if not engine.has_image(names["NAME"]) and not engine.has_image(BASE):
        raise _CannotRunError("an image with the official toolkit needs `fleetfit image base` first")
    try:
        return str(names["build"](engine, BASE))
    except (OSError, subprocess.SubprocessError, EngineError) as error:
        raise _CannotRunError(f"the image with the official toolkit cannot be made: {error}") from error


def _official(python: Path, image: str, folder: str) -> Numbers:
    """The official SDK's local mode; what it leaves on the engine is removed afterwards."""
    place = Path(folder) / "official"
    place.mkdir(exist_ok=True)
    script = str(harness.HERE / "scripts" / "official_local.py")
    environment = {
        **os.environ,
        "AWS_EC2_METADATA_DISABLED": "true",  # else it waits for a machine of Amazon's to answer
        "SAGEMAKER_SUPPRESS_V2_WARNING": "1",
    }
    try:
        done = subprocess.run(
            [str(python), script, image, folder, str(place)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=_OFFICIAL_TIMEOUT_S,
            check=False,
        )
    finally:
        for file in place.glob("*/docker-compose.yaml"):
            subprocess.run(["docker-compose", "-f", str(file), "down"], capture_output=True, check=False)
        shutil.rmtree(place, ignore_errors=True)
    if done.returncode != 0:
        raise RuntimeError(f"the official SDK's local mode failed:\n{(done.stdout + done.stderr)[-2000:]}")
    assert done.stdout.count("first line ") == 2, done.stdout
    return {"seconds": float(done.stdout.split()[-1])}


def _fit(folder: str, keep: int | None = None) -> Numbers:
    from estimators import PreflightWarning

    estimator = TensorFlow(
        entry_point="sleep.py",
        source_dir=folder,
        instance_count=2,
        instance_type="local",
        keep_alive_period_in_seconds=keep,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PreflightWarning)
        began = time.time()
        job = estimator.fit(logs=False)
        seconds = time.time() - began
    first = min(float(line.text.split()[2]) for line in job.log_lines() if line.text.startswith("first line"))
    harness.wait_for_exit(job.record.read_status()["Fleetfit"]["supervisor_pid"])
    while any(Engine().leftovers({JOB_LABEL: job.name})):  # what comes next has the machine to itself
        time.sleep(0.05)
    assert job.status == "Completed"
    return {"seconds": seconds, "first line": first - began}


def _bare(folder: str) -> Numbers:
    """Two containers of the same image that run the same script, at once."""
    mount = f"{folder}/sleep.py:/sleep.py:ro"
    command = ["docker", "run", "--rm", "-v", mount, "fleetfit-training", "python", "/sleep.py"]
    began = time.time()
    both = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    return {"seconds": time.time() - began}


# --- steps/s ---


class _Horovod(steps.HorovodTraining):
    """Horovod over two containers; by hand in two that are there already.

    Args:
        folder: See :class:`benchmarks.steps.Training`; the containers have it at the same path.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(2, 1, folder)
        self._folder = folder

    def estimator(self) -> TensorFlow:
        """What ``fit()`` is called on."""
        return TensorFlow(
            entry_point=self._script,
            source_dir=str(steps.SCRIPTS),
            instance_count=2,
            instance_type="local",
            distribution=self._distribution,
            hyperparameters={"steps": self.steps, "result": str(self._result)},
            run_options=RunOptions(backend_options={"mounts": {str(self._folder): str(self._folder)}}),
        )

    def line(self) -> list[str]:
        """The mpirun line that ``plan()`` shows, with ssh in place of our remote shell and without the rank wrapper."""
        planned = self.estimator().plan().mpirun
        assert planned is not None
        words = list(planned)
        words.remove(RANK_PROGRAM)  # which goes to the code from any folder
        at = words.index("--wdir")
        words[at : at + 2] = []
        at = words.index("plm_rsh_agent")
        return [*words[: at - 1], *words[at + 2 :]]

    def _launch(self) -> None:
        first = _name(1)
        steps.run_processes([("mpirun", ["docker", "exec", "--workdir", _CODE, first, *self.line()], {})])


def _name(number: int) -> str:
    return f"fleetfit-bench-{os.getpid()}-{number}"


@contextlib.contextmanager
def _two_containers(folder: Path) -> Iterator[None]:
    """Two containers called algo-1 and algo-2 that reach each other by ssh."""
    engine = Engine()
    network = _name(0)
    labels = {JOB_LABEL: network}
    hosts = ("algo-1", "algo-2")
    engine.create_network(network, labels)
    try:
        keys = job_secrets.ssh_files(hosts, engine.image(IMAGE).environment)
        for number, host in enumerate(hosts, 1):
            plan = ContainerPlan(
                host=host,
                name=_name(number),
                image=IMAGE,
                entrypoint=("/usr/sbin/sshd",),
                command=("-D",),
                mounts=(
                    Mount(source=str(folder), target=str(folder)),
                    Mount(source=str(steps.SCRIPTS), target=_CODE, read_only=True),
                ),
                labels=labels,
                network=network,
            )
            made = engine.create(plan)
            engine.put(made, keys)
            engine.start(made, plan)
        yield
    finally:
        engine.remove_all(labels)


def run_steps(options: argparse.Namespace) -> None:
    """Measure and record."""
    rounds = options.alternations or _STEPS_ROUNDS
    with harness.own_home(), tempfile.TemporaryDirectory(prefix="bench-fleetfit-") as folder:
        quiet = Quiet(options.patience, engine_seconds)
        quiet.wait()
        training = _Horovod(Path(folder))
        with _two_containers(Path(folder)):
            training.steps = math.ceil((options.seconds or steps.SECONDS) / training.by_hand()["median_step_s"])
            values = harness.alternate(
                rounds, {"by hand": training.by_hand, "fit()": training.by_fit}, quiet, warm_up=0
            )
    harness.record(
        "containers-steps",
        steps.rows("Horovod over 2 containers, fit() ÷ mpirun by hand in the same", values, bar=_STEPS),
        {"steps": training.steps, "ways": values},
        quiet,
        dry=options.dry,
    )
