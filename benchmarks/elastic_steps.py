"""What being elastic costs while nothing happens, and what the interval of the commits is worth.

The scripts are ``elastic_speed.py`` and ``elastic_speed_torch.py``. Static means Horovod over Gloo
(``horovodrun --gloo``), which is what elastic Horovod reduces with too. Starting a training takes longer than what is
measured of it, so each is measured often: the elastic and the static one are there at the same time and make an epoch
in turns, and while one does, the ranks of the other are stopped by SIGSTOP.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.elastic import Job
from benchmarks.harness import Bar, Numbers, Quiet, Row, median_with_interval
from estimators import ElasticHorovod, Estimator, PreflightWarning, PyTorch, TensorFlow
from estimators.faults import Kill

_SCRIPTS = {
    "tensorflow": harness.HERE / "scripts" / "elastic_speed.py",
    "torch": harness.HERE / "scripts" / "elastic_speed_torch.py",
}
_ELASTIC, _STATIC = "elastic, fit()", "static, horovodrun --gloo"
#: Steps of an epoch: some seconds. Gloo gives up after 30 s, those of a stop included.
_STEPS = 250
#: How often both trainings are started, and the epochs of each that are timed in a start.
_STARTS, _WINDOWS = 8, 6
#: How long an epoch, or the start, may take, in seconds.
_TIMEOUT = 180.0
#: Steps between commits that are compared; as many as an epoch has are one an epoch, 0 is the automatic interval.
INTERVALS = {"every batch": 1, "every 10": 10, "every 100": 100, "every epoch": _STEPS, "automatically": 0}
#: How often the intervals are compared, and the kills for each of them.
_ROUNDS, _KILLS = 5, 3


def estimator(folder: Path, *, hosts: int, framework: str = "tensorflow", **hyperparameters: Any) -> Estimator:
    """The elastic training.

    Args:
        folder: Where it says what it did.
        hosts: How many, of one rank each.
        framework: Of the script: ``tensorflow`` or ``torch``.
        hyperparameters: Of the script.
    """
    script = _SCRIPTS[framework]
    kind: type[Estimator] = PyTorch if framework == "torch" else TensorFlow
    own = {"model_dir": False} if framework == "tensorflow" else {}
    return kind(
        entry_point=script.name,
        source_dir=str(script.parent),
        instance_count=hosts,
        instance_type="local_process",
        **own,
        # What was killed does not come back while the benchmark looks.
        distribution=ElasticHorovod(cooldown=(600.0, 600.0)),
        hyperparameters={"folder": str(folder), "steps": _STEPS, **hyperparameters},
    )


class Held:
    """A training that makes an epoch when it is let, and does nothing in between.

    Args:
        folder: Where it says what it did.
        check: Raises when it has ended too early.
    """

    def __init__(self, folder: Path, check: Callable[[], None]) -> None:
        self._folder = folder
        self._check = check
        self._epochs = 0

    def warm_up(self) -> None:
        """Wait for its first epoch, and stop it."""
        self._epoch()

    def window(self) -> Numbers:
        """Have it make an epoch; what that took."""
        self.resume()
        return self._epoch()

    def resume(self) -> None:
        """Let it go on."""
        self.signal(signal.SIGCONT)
        (self._folder / f"go-{self._epochs - 1}").touch()

    def signal(self, number: int) -> None:
        """Send its ranks a signal; those that are gone need none."""
        for path in self._folder.glob("rank-*"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(path.read_text()), number)

    @property
    def threads(self) -> int:
        """With how many threads it computes."""
        return int((self._folder / "threads").read_text())

    def _epoch(self) -> Numbers:
        path = self._folder / f"epoch-{self._epochs}.json"
        deadline = time.monotonic() + _TIMEOUT
        while not path.exists():
            self._check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"no epoch within {_TIMEOUT:g} s")
            time.sleep(0.01)
        self.signal(signal.SIGSTOP)
        self._epochs += 1
        numbers: Numbers = json.loads(path.read_text())
        return numbers


@contextlib.contextmanager
def held_fit(folder: Path, framework: str) -> Iterator[Held]:
    """Under ``fit()``, elastic; it must have made all of its epochs at the end."""
    job = Job(estimator(folder, hosts=2, framework=framework, epochs=_WINDOWS + 1, held=1))
    held = Held(folder, job.check)
    with job.running():
        try:
            yield held
        finally:
            held.resume()


@contextlib.contextmanager
def held_horovodrun(folder: Path, framework: str) -> Iterator[Held]:
    """Under horovodrun, static."""
    binaries = Path(sys.executable).parent
    command = [
        sys.executable, str(binaries / "horovodrun"), "--gloo", "-np", "2", "--network-interfaces", "lo",
        sys.executable, str(_SCRIPTS[framework]), "--folder", str(folder), "--steps", str(_STEPS),
        "--epochs", str(_WINDOWS + 1), "--held", "1",
    ]  # fmt: skip
    environment = {
        **os.environ,
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{harness.HERE.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(os.pathsep),
    }
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )

    def check() -> None:
        if process.poll() is not None:
            raise RuntimeError(
                f"horovodrun has ended with {process.returncode}:\n{log.read_text(errors='replace')[-3000:]}"
            )

    held = Held(folder, check)
    try:
        yield held
        held.resume()
        if process.wait(_TIMEOUT):
            check()
    finally:
        if process.poll() is None:
            held.signal(signal.SIGKILL)  # its ranks have sessions of their own
            process.kill()
        process.wait()


def side_by_side(framework: str) -> dict[str, list[Numbers]]:
    """Start both, and have them make epochs in turns."""
    rounds: dict[str, list[Numbers]] = {_ELASTIC: [], _STATIC: []}
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="elastic-")))
        ways: dict[str, Held] = {}
        for name, start in ((_ELASTIC, held_fit), (_STATIC, held_horovodrun)):
            (root / name).mkdir()
            ways[name] = stack.enter_context(start(root / name, framework))
        for held in ways.values():
            held.warm_up()
        threads = {name: held.threads for name, held in ways.items()}
        assert len(set(threads.values())) == 1, f"they compute with different numbers of threads: {threads}"
        for number in range(_WINDOWS):
            for name in (_ELASTIC, _STATIC) if number % 2 else (_STATIC, _ELASTIC):
                rounds[name].append(ways[name].window())
    return rounds


def steady_rows(rounds: Mapping[str, Sequence[Numbers]], interval: str = "at the automatic interval") -> list[Row]:
    """Elastic ÷ static, and the commits' share. Pure."""
    bar = Bar(limit=0.98, at_least=True)
    pairs = list(zip(rounds[_ELASTIC], rounds[_STATIC], strict=True))
    ours, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    found: list[Row] = []
    for what, ratios in (
        ("steps/s", [one["steps_per_second"] / other["steps_per_second"] for one, other in pairs]),
        ("steps/s by the median step", [other["median_step_s"] / one["median_step_s"] for one, other in pairs]),
    ):
        beside = {
            name: median_with_interval([numbers["steps_per_second"] for numbers in values]).value
            for name, values in ((_ELASTIC, ours), (_STATIC, theirs))
        }
        estimate = median_with_interval(ratios)
        found.append(
            Row(what=f"undisturbed, {what}: elastic ÷ static", estimate=estimate, unit="", bar=bar, beside=beside)
        )
    share = median_with_interval([100 * numbers["commit_share"] for numbers in ours])
    commits = {"commits": median_with_interval([numbers["commits"] for numbers in ours]).value}
    found.append(
        Row(
            what=f"commits {interval}, share of the time",
            estimate=share,
            unit="%",
            bar=Bar(limit=1.0),
            beside=commits,
        )
    )
    return found


def run_torch(options: argparse.Namespace) -> None:
    """Measure an undisturbed training of PyTorch, which commits once an epoch."""
    run(options, "torch")


def run(options: argparse.Namespace, framework: str = "tensorflow") -> None:
    """Measure an undisturbed training."""
    quiet = Quiet(options.patience)
    rounds: dict[str, list[Numbers]] = {_ELASTIC: [], _STATIC: []}
    starts = options.alternations or _STARTS
    with harness.own_home():
        while len(rounds[_ELASTIC]) < starts * _WINDOWS:
            quiet.wait()
            found = side_by_side(framework)
            if quiet.was_quiet():
                for name, values in found.items():
                    rounds[name] += values
                    rate = statistics.median(numbers["steps_per_second"] for numbers in values)
                    print(f"  {name}: {rate:.1f} steps/s", file=sys.stderr, flush=True)
    name = "elastic-steps" if framework == "tensorflow" else f"elastic-steps-{framework}"
    rows = steady_rows(rounds) if framework == "tensorflow" else steady_rows(rounds, "once an epoch")
    harness.record(name, rows, rounds, quiet, dry=options.dry)


def commit_rows(rounds: Mapping[str, Sequence[Numbers]], lost: Mapping[str, Sequence[int]]) -> list[Row]:
    """Speed and lost work, by the interval. Pure.

    Args:
        rounds: Interval -> what its trainings said.
        lost: Interval -> steps that were lost at each kill; nothing where none was killed.
    """
    found: list[Row] = []
    for name, values in rounds.items():
        rate = median_with_interval([numbers["steps_per_second"] for numbers in values])
        step_s = statistics.median(numbers["median_step_s"] for numbers in values)
        beside = {"share of the time, %": 100 * statistics.median(numbers["commit_share"] for numbers in values)}
        found.append(Row(what=f"commit {name}: speed", estimate=rate, unit="steps/s", beside=beside))
        if name not in lost:
            continue
        steps = median_with_interval(lost[name])
        beside = {"seconds": steps.value * step_s}
        found.append(Row(what=f"commit {name}: lost at a kill", estimate=steps, unit="steps", beside=beside))
    return found


def _train(of: Estimator, **options: Any) -> Any:
    """Run a job to its end; returns it."""
    with warnings.catch_warnings(), open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        warnings.simplefilter("ignore", PreflightWarning)
        job = of.fit(**options)
    harness.wait_for_exit(job.record.read_status()["Fleetfit"]["supervisor_pid"])
    assert job.status == "Completed"  # asking also reaps the supervisor
    return job


def speeds(rounds: int, framework: str = "tensorflow") -> dict[str, list[Numbers]]:
    """Steps/s with each interval, by round: trainings of one job, the order turning."""
    names = [name for name, every in INTERVALS.items() if every or framework == "tensorflow"]
    order = [names[(turn + place) % len(names)] for turn in range(rounds) for place in range(len(names))]
    found: dict[str, list[Numbers]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="elastic-") as folder:
        every = "+".join(str(INTERVALS[name]) for name in order)
        _train(estimator(Path(folder), hosts=2, framework=framework, epochs=2, **{"commit-every": every}))
        for number, name in enumerate(order):
            found[name].append(json.loads(Path(folder, f"epoch-{2 * number + 1}.json").read_text()))
    return found


def losses(every: int, moments: Sequence[int]) -> list[int]:
    """Steps that were lost when ranks were killed.

    Args:
        every: Steps between commits; 0 for the automatic interval.
        moments: The step of an epoch after which the last rank is killed, by epoch.
    """
    last = len(moments)
    faults = [Kill(rank=last - epoch, at_step=epoch * _STEPS + moment) for epoch, moment in enumerate(moments)]
    with tempfile.TemporaryDirectory(prefix="elastic-") as folder:
        job = _train(estimator(Path(folder), hosts=last + 1, epochs=last, **{"commit-every": every}), faults=faults)
    restores = [event for event in job.record.events() if event.kind == "restored" and event.rank == 0]
    assert len(restores) == last, f"{len(restores)} of {last} kills were followed by a restore"
    return [int(event.data["steps_lost"]) for event in restores]


def run_commits_torch(options: argparse.Namespace) -> None:
    """Measure the intervals of PyTorch's commits."""
    quiet = Quiet(options.patience)
    with harness.own_home():
        while True:
            quiet.wait()
            found = speeds(options.alternations or _ROUNDS, "torch")
            if quiet.was_quiet():
                break
    harness.record("elastic-commits-torch", commit_rows(found, {}), {"speed": found}, quiet, dry=options.dry)


def run_commits(options: argparse.Namespace) -> None:
    """Measure the intervals; with each of them, ranks are killed after the same random steps."""
    quiet = Quiet(options.patience)
    generator = random.Random(1)
    moments = [generator.randrange(_STEPS // 10, _STEPS - _STEPS // 10) for _ in range(_KILLS)]
    with harness.own_home():
        while True:
            quiet.wait()
            found = speeds(options.alternations or _ROUNDS)
            if quiet.was_quiet():
                break
        lost = {name: losses(every, moments) for name, every in INTERVALS.items()}  # counts, whoever else is busy
    harness.record(
        "elastic-commits", commit_rows(found, lost), {"speed": found, "steps_lost": lost}, quiet, dry=options.dry
    )
