"""Does a number of workers that changes hurt the training? Five settings, several seeds each, curves side by side.

They repeat, at the size of a small machine, experiments that were run on eight GPUs: a number that is fixed, one that
changes by one or by three at random intervals, a small one that is fixed, and one that doubles as epochs pass. Eight
GPUs become four workers, two become one, 90 epochs 21, and a minute a few seconds. The network is a small residual one,
the data are the digits (``entrypoints/train_residual.py``).

Each run is kept in the results file when it has ended, so that the whole can be stopped and started again at any time:

    python examples/elastic_convergence.py --output benchmarks/results/elastic-convergence.json
    python examples/elastic_convergence.py --output benchmarks/results/elastic-convergence.json --report

The workers are processes of this machine. With ``--ray`` they are hosts on the nodes of a Ray cluster, and the changes
are the cluster's: nodes join, and are drained and go, as spot machines do. A node that joins has to import TensorFlow
first, so that a minute is better 15 seconds, and the training longer:

    python examples/elastic_convergence.py --ray --interval 15 --epochs 90 --seeds 3 \\
        --output benchmarks/results/elastic-convergence-ray.json
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import itertools
import json
import os
import queue
import statistics
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from estimators import ElasticHorovod, PreflightWarning, RunOptions, TensorFlow, TrainingJob
from estimators.callbacks import Callback, GrowWithEpochs, RandomResize

if TYPE_CHECKING:
    from estimators.results.plots import Plot

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "elastic-convergence.json"
EPOCHS = 21
SEEDS = 5
#: What becomes of the minute between two changes, in seconds.
INTERVAL = 2.5
#: How long before it goes a node of Ray's is drained, in seconds, and how long a worker may take to leave it.
NOTICE_S = 8
#: The accuracy at the end is the mean over so many epochs.
LAST = 3
#: What came of a claim.
REPRODUCED, NOT_REPRODUCED, OPEN = "reproduced", "not reproduced", "too few runs"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """How the number of workers goes.

    Attributes:
        name: A short name.
        published: The experiment that it stands for.
        here: What becomes of it on this machine.
        workers: How many there are at the start.
        spares: Workers that are kept ready, so that a growth does not wait for TensorFlow's import.
    """

    name: str
    published: str
    here: str
    workers: int
    spares: int = 0


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting(name="fixed 4", published="8 GPUs fixed", here="4 workers", workers=4),
        Setting(name="±1", published="±1 worker every 60 s, up to 8", here="±1 at a time, 1 to 4", workers=4, spares=1),
        Setting(
            name="±3", published="±3 workers every 180 s, up to 8", here="±3 at a time, 1 to 4", workers=4, spares=3
        ),
        Setting(name="fixed 1", published="2 GPUs fixed", here="1 worker", workers=1),
        Setting(
            name="doubling", published="2 to 8 GPUs, doubled every 30 of 90 epochs",
            here="1, 2 and 4 workers, a third of the epochs each", workers=1, spares=2,
        ),
    )
}  # fmt: skip


def callback_of(
    setting: Setting, *, seed: int, epochs: int, interval: float, nodes: Nodes | None = None
) -> Callback | None:
    """What resizes the job. At random: at the maximum always down, at the minimum always up, else either alike."""
    if setting.name == "±1":
        return RandomResize(step=1, interval=interval, min=1, max=4, seed=seed, hosts=nodes)
    if setting.name == "±3":
        return RandomResize(step=3, interval=3 * interval, min=1, max=4, seed=seed, hosts=nodes)
    if setting.name == "doubling":
        return GrowWithEpochs({epochs // 3: 2, 2 * epochs // 3: 4}, hosts=nodes)
    return None


class Nodes:
    """A Ray cluster of this machine: a head that trains nothing, and nodes that have room for one worker each.

    Ray lets the main thread alone start nodes, and ends those that a thread has started with that thread. Changes that
    others ask for are made by :meth:`serve`.

    Attributes:
        address: Where jobs join it.
    """

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        self._nodes: list[Any] = []
        self._asked: queue.Queue[tuple[concurrent.futures.Future[bool], TrainingJob, int]] = queue.Queue()
        self._serving = False
        self.address = str(self._cluster.address)

    def size(self, job: TrainingJob) -> int:
        """Return how many nodes there are."""
        return len(self._nodes)

    def resize(self, job: TrainingJob, size: int) -> bool:
        """Have nodes join, or drain the newest ones, which go when their workers have left."""
        if threading.current_thread() is threading.main_thread():
            return self._resize(job, size)
        made: concurrent.futures.Future[bool] = concurrent.futures.Future()
        self._asked.put((made, job, size))
        return self._serving and made.result()

    def serve(self, training: concurrent.futures.Future[TrainingJob]) -> TrainingJob:
        """Make the changes that are asked for until a training is over; return its job."""
        self._serving = True
        while not training.done() or not self._asked.empty():
            with contextlib.suppress(queue.Empty):
                made, job, size = self._asked.get(timeout=0.1)
                try:
                    made.set_result(self._resize(job, size))
                except Exception as error:
                    made.set_exception(error)
                    raise
        self._serving = False
        return training.result()

    def _resize(self, job: TrainingJob, size: int) -> bool:
        self.add(size)
        leaving = self._nodes[size:]
        del self._nodes[size:]
        words = ["--address", self.address, "--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "spot"]
        words += ["--deadline-remaining-seconds", str(NOTICE_S)]
        ray = Path(sys.executable).with_name("ray")
        draining = [
            subprocess.Popen([ray, "drain-node", "--node-id", node.node_id, *words], stdout=subprocess.DEVNULL)
            for node in leaving
        ]
        for process in draining:
            if process.wait() != 0:
                raise RuntimeError("Ray has not drained a node")
        until = time.monotonic() + NOTICE_S
        while leaving and len(job.hosts) > size and time.monotonic() < until and not job.status.is_terminal:
            time.sleep(0.2)
        for node in leaving:
            self._cluster.remove_node(node)
        return not job.status.is_terminal

    def add(self, size: int) -> None:
        """Have nodes join until there are so many."""
        while len(self._nodes) < size:
            self._nodes.append(self._cluster.add_node(wait=False, num_cpus=1))

    def close(self) -> None:
        """End the cluster."""
        self._cluster.shutdown()


@contextlib.contextmanager
def nodes_of(setting: Setting) -> Iterator[Nodes]:
    """Have a cluster of as many nodes as a setting begins with."""
    nodes = Nodes()
    try:
        nodes.add(setting.workers)
        yield nodes
    finally:
        nodes.close()


def train(
    setting: Setting,
    *,
    seed: int,
    epochs: int,
    interval: float,
    inputs: Mapping[str, str],
    nodes: Nodes | None = None,
) -> dict[str, Any]:
    """Run one training.

    Args:
        setting: How the number of workers goes.
        seed: For the weights, the order of the data, and the changes.
        epochs: How many.
        interval: Seconds for a minute.
        inputs: The channels.
        nodes: Those of the Ray cluster on which it runs; None: this machine.

    Returns:
        What is kept of it; see :func:`kept`.

    Raises:
        TrainingJobError: it failed.
    """
    on_ray = {} if nodes is None else {"address": nodes.address, "resources_per_host": {"CPU": 1}}
    estimator = TensorFlow(
        entry_point="train_residual.py",
        source_dir=str(ROOT / "entrypoints"),
        instance_type="ray" if nodes is not None else "local_process",
        run_options=RunOptions(backend_options=on_ray),
        instance_count=setting.workers,
        distribution=ElasticHorovod(min_hosts=1, max_hosts=4, spares=0 if nodes is not None else setting.spares),
        hyperparameters={"epochs": epochs, "seed": seed},
        model_dir=False,
        base_job_name="convergence",
    )
    callback = callback_of(setting, seed=seed, epochs=epochs, interval=interval, nodes=nodes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PreflightWarning)  # workers share the cores, on purpose
        callbacks = [callback] if callback is not None else None
        if nodes is None:
            job = estimator.fit(dict(inputs), logs=False, callbacks=callbacks)
        else:
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                try:
                    job = nodes.serve(pool.submit(estimator.fit, dict(inputs), logs=False, callbacks=callbacks))
                except BaseException:
                    if estimator.latest_training_job is not None:
                        estimator.latest_training_job.stop()
                    raise
    return {"setting": setting.name, "seed": seed, "epochs": epochs, "interval": interval, **kept(job)}


def kept(job: TrainingJob) -> dict[str, Any]:
    """What is kept of a run: times are in seconds from the first membership on.

    Returns:
        ``curve``: a list for each epoch: epoch, time, loss, accuracy on the validation data, workers; ``sizes``: a list
        for each change: time, workers; ``wall_s``: the time of the last epoch's end; ``worker_s``: seconds of all
        workers together.
    """
    events = list(job.record.events())
    began = next(event.time_ns for event in events if event.kind == "resized")
    sizes = [
        [round((event.time_ns - began) / 1e9, 3), int(event.data["size"])]
        for event in events
        if event.kind == "resized"
    ]
    rows: list[dict[str, float]] = []
    for event in events:
        if event.kind == "metric":
            if event.data["name"] == "epoch":
                rows.append({"at": round((event.time_ns - began) / 1e9, 3)})
            if rows:
                rows[-1][str(event.data["name"])] = float(event.data["value"])
    # An epoch that a lost worker made the others repeat counts as it went in the end.
    by_epoch = {int(row["epoch"]): row for row in rows if "val_accuracy" in row}
    curve = [
        [epoch, row["at"], row.get("loss"), row["val_accuracy"], int(row.get("workers", 0))]
        for epoch, row in sorted(by_epoch.items())
    ]
    wall = curve[-1][1]
    ends = [at for at, _ in sizes[1:]] + [wall]
    return {
        "curve": curve,
        "sizes": sizes,
        "wall_s": wall,
        "worker_s": round(sum(size * (end - at) for (at, size), end in zip(sizes, ends, strict=True)), 3),
    }


# --- what came of it; all of this is pure ---


def final(run: Mapping[str, Any]) -> float:
    """The accuracy at the end of a run."""
    return statistics.mean(point[3] for point in run["curve"][-LAST:])


def unevenness(run: Mapping[str, Any]) -> float:
    """How much the accuracy moves from one epoch to the next in the second half, as a standard deviation."""
    half = [point[3] for point in run["curve"]][len(run["curve"]) // 2 :]
    return statistics.pstdev(after - before for before, after in itertools.pairwise(half)) if len(half) > 2 else 0.0


def of(runs: Iterable[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    """The runs of a setting."""
    return [run for run in runs if run["setting"] == name]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """What somebody says of such trainings, and what the runs say.

    Attributes:
        text: The claim.
        source: Who makes it.
        verdict: :data:`REPRODUCED`, :data:`NOT_REPRODUCED` or :data:`OPEN`.
        numbers: On what that rests.
    """

    text: str
    source: str
    verdict: str
    numbers: str


_ELASTICDL = "ElasticDL, Benchmark Performance Report, experiment 3 (ResNet-20, CIFAR-10, 2 to 4 workers)"
_LIN = "Lin et al., Dynamic Mini-batch SGD for Elastic Distributed Training, arXiv:1904.12043"
_UBER = "Addair, Ning and Liaw, Elastic Deep Learning with Horovod on Ray (ResNet-50, CIFAR-10, 2 to 8 GPUs)"
_SETUP = "the setting's purpose"
_CHANGING = ("±1", "±3", "doubling")


def spread(runs: Sequence[Mapping[str, Any]]) -> float:
    """The seeds' spread of the accuracy at the end: the highest less the lowest."""
    accuracies = [final(run) for run in runs]
    return max(accuracies) - min(accuracies)


def worse(runs: Sequence[Mapping[str, Any]], name: str) -> list[int]:
    """The seeds of a setting whose accuracy is below the median of the fixed four by more than the seeds' spread."""
    fixed = of(runs, "fixed 4")
    least = statistics.median(map(final, fixed)) - spread(fixed)
    return [int(run["seed"]) for run in of(runs, name) if final(run) < least]


def claims(runs: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """Each claim, and whether these runs reproduce it."""
    if any(len(of(runs, name)) < 2 for name in SETTINGS):
        return []
    if any(max(size for _, size in run["sizes"]) < 4 for run in of(runs, "doubling")):
        return []  # the last workers came when it was over

    def median(value: Callable[[Mapping[str, Any]], float], name: str) -> float:
        return statistics.median(map(value, of(runs, name)))

    def wall(run: Mapping[str, Any]) -> float:
        return float(run["wall_s"])

    def listed(value: Callable[[Mapping[str, Any]], float], names: Sequence[str], form: str) -> str:
        return ", ".join(f"{name} {median(value, name):{form}}" for name in names)

    def said(text: str, source: str, holds: bool, numbers: str) -> Claim:
        return Claim(text=text, source=source, verdict=REPRODUCED if holds else NOT_REPRODUCED, numbers=numbers)

    low = {name: worse(runs, name) for name in _CHANGING}
    below = "; ".join(f"{name}: {len(seeds)} of {len(of(runs, name))}" for name, seeds in low.items())
    accuracies = listed(final, tuple(SETTINGS), ".4f")
    width = f"spread of the fixed four {spread(of(runs, 'fixed 4')):.4f}"
    uneven = {name: median(unevenness, name) for name in SETTINGS}
    return [
        said(
            "Workers that come and go do not hurt the accuracy at the end.", _ELASTICDL,
            not any(low.values()), f"{accuracies}; {width}; worse by more than that: {below}",
        ),
        said(
            "With momentum, scaling the learning rate at once when the number changes costs accuracy.", _LIN,
            bool(low["±1"] or low["±3"]), f"worse by more than the spread: {below}",
        ),
        said(
            "The larger the changes, the less even the curve: fixed ≤ ±1 ≤ ±3.", _UBER,
            uneven["fixed 4"] <= uneven["±1"] <= uneven["±3"], listed(unevenness, tuple(SETTINGS)[:3], ".4f"),
        ),
        said(
            "Large changes end more accurate than the large fixed number.", _UBER,
            median(final, "±3") > median(final, "fixed 4"), listed(final, ("±3", "fixed 4"), ".4f"),
        ),
        said(
            "The small fixed number ends more accurate than the large one.", _UBER,
            median(final, "fixed 1") > median(final, "fixed 4"), listed(final, ("fixed 1", "fixed 4"), ".4f"),
        ),
        said(
            "A changing number of workers finishes sooner than the small fixed number.", _SETUP,
            max(median(wall, name) for name in ("±1", "±3")) < median(wall, "fixed 1"),
            listed(wall, ("fixed 4", "±1", "±3", "fixed 1"), ".1f") + " s",
        ),
        said(
            "Doubling ends more accurate than the small fixed number, and sooner.", _UBER,
            median(final, "doubling") > median(final, "fixed 1")
            and median(wall, "doubling") < median(wall, "fixed 1"),
            f"{listed(final, ('doubling', 'fixed 1'), '.4f')}; {listed(wall, ('doubling', 'fixed 1'), '.1f')} s",
        ),
        said(
            "Doubling needs less of the workers' time than the large fixed number.", _SETUP,
            median(lambda run: run["worker_s"], "doubling") < median(lambda run: run["worker_s"], "fixed 4"),
            listed(lambda run: run["worker_s"], ("doubling", "fixed 4"), ".1f") + " worker seconds",
        ),
    ]  # fmt: skip


def table(runs: Sequence[Mapping[str, Any]]) -> str:
    """The settings side by side, and the claims, as Markdown."""
    lines = [
        "| workers | stands for | runs | accuracy at the end (lowest to highest) | wall-clock | worker seconds "
        "| unevenness |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, setting in SETTINGS.items():
        found = of(runs, name)
        if not found:
            continue
        accuracies = [final(run) for run in found]
        middle, low, high = statistics.median(accuracies), min(accuracies), max(accuracies)
        wall = statistics.median(run["wall_s"] for run in found)
        workers = statistics.median(run["worker_s"] for run in found)
        lines.append(
            f"| {name} | {setting.published} | {len(found)} | {middle:.4f} ({low:.4f} to {high:.4f}) | {wall:.1f} s | "
            f"{workers:.0f} | {statistics.median(map(unevenness, found)):.4f} |"
        )
    found_claims = claims(runs)
    if found_claims:
        lines += ["", "| claim | source | here | numbers (medians) |", "| --- | --- | --- | --- |"]
        lines += [f"| {one.text} | {one.source} | **{one.verdict}** | {one.numbers} |" for one in found_claims]
    else:
        lines += ["", f"Claims: {OPEN}; each setting needs two, in which the doubling one gets to four workers."]
    return "\n".join(lines)


# --- pictures ---


def draw_curves(runs: Sequence[Mapping[str, Any]]) -> Plot:
    """Accuracy by epoch and by time: the median of the seeds, and their range."""
    from estimators.results.plots import Plot, style

    made, axes = style.figure(1, 2, height=3.4)
    if not runs:
        return _nothing(made, axes)
    for place, name in enumerate(SETTINGS):
        found = of(runs, name)
        if not found:
            continue
        epochs = [point[0] for point in min((run["curve"] for run in found), key=len)]
        columns = [[run["curve"][number][3] for run in found] for number in range(len(epochs))]
        times = [statistics.median(run["curve"][number][1] for run in found) for number in range(len(epochs))]
        for one, x in zip(axes, (epochs, times), strict=True):
            middle = [statistics.median(column) for column in columns]
            one.plot(x, middle, label=name, **{**style.look(place).line(100), "linewidth": 1.4})
            one.fill_between(
                x, [min(column) for column in columns], [max(column) for column in columns],
                color=style.colour(place), alpha=0.12, linewidth=0,
            )  # fmt: skip
    least = min((point[3] for run in runs for point in run["curve"][len(run["curve"]) // 3 :]), default=0.9)
    for one in axes:
        one.set_ylim(max(0.0, least - 0.02), 1.0)
    style.label(axes[0], x="epoch", y="validation accuracy")
    style.label(axes[1], x="time since the workers met (s)")
    style.legend(made, axes[0])
    return Plot(made, "Accuracy")


def draw_sizes(runs: Sequence[Mapping[str, Any]], seed: int | None = None) -> Plot:
    """The number of workers over time, one run of each setting: by default of the first seed that is there."""
    from estimators.results.plots import Plot, style

    made, axes = style.figure(len(SETTINGS), 1, height=0.8 + 0.85 * len(SETTINGS))
    if not runs:
        return _nothing(made, axes)
    longest = max((run["wall_s"] for run in runs), default=1.0)
    for place, (name, one) in enumerate(zip(SETTINGS, axes, strict=True)):
        found = [run for run in of(runs, name) if seed is None or run["seed"] == seed]
        if found:
            run = found[0]
            x = [at for at, _ in run["sizes"]] + [run["wall_s"]]
            y = [size for _, size in run["sizes"]] + [run["sizes"][-1][1]]
            one.step(x, y, where="post", color=style.colour(place), linewidth=1.6)
            one.fill_between(x, y, step="post", color=style.colour(place), alpha=0.15, linewidth=0)
        one.set_xlim(0, longest)
        one.set_ylim(0, 4.6)
        one.set_yticks([1, 2, 4])
        style.label(one, x="time since the workers met (s)" if place == len(axes) - 1 else "", y=name)
    return Plot(made, "Workers")


def draw_summary(runs: Sequence[Mapping[str, Any]]) -> Plot:
    """Accuracy at the end, wall-clock and unevenness: a point for each seed, a bar at the median."""
    from estimators.results.plots import Plot, style

    made, axes = style.figure(1, 3, height=2.6)
    if not runs:
        return _nothing(made, axes)
    shown: tuple[tuple[str, Callable[[Mapping[str, Any]], float]], ...] = (
        ("accuracy at the end", final), ("wall-clock (s)", lambda run: run["wall_s"]), ("unevenness", unevenness),
    )  # fmt: skip
    names = [name for name in SETTINGS if of(runs, name)]
    for one, (title, value) in zip(axes, shown, strict=True):
        for place, name in enumerate(names):
            values = [value(run) for run in of(runs, name)]
            colour = style.colour(list(SETTINGS).index(name))
            one.plot(values, [place] * len(values), "o", color=colour, alpha=0.6, markersize=4)
            one.plot([statistics.median(values)] * 2, [place - 0.3, place + 0.3], color=colour, linewidth=2)
        one.set_ylim(len(names) - 0.5, -0.5)
        one.set_yticks(range(len(names)), names if one is axes[0] else [""] * len(names))
        one.grid(False, axis="y")
        one.locator_params(axis="x", nbins=4)
        style.label(one, x=title)
    return Plot(made, "Summary")


def _nothing(made: Any, axes: Sequence[Any]) -> Plot:
    from estimators.results.plots import Plot, style

    for one in axes:
        style.say(one, "no run is recorded yet")
    return Plot(made, "Nothing")


# --- the results file ---


def load(path: Path = RESULTS) -> list[dict[str, Any]]:
    """The runs that a results file has; none where there is no file."""
    if not path.exists():
        return []
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["runs"]
    return found


def save(path: Path, runs: Sequence[Mapping[str, Any]]) -> None:
    """Keep the runs, in one piece or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = json.dumps({"experiment": "elastic-convergence", "cores": len(os.sched_getaffinity(0))})[:-1]
    body = ",\n  ".join(json.dumps(run, ensure_ascii=False) for run in runs)
    new = path.with_suffix(".new")
    new.write_text(f'{head}, "runs": [\n  {body}\n]}}\n', encoding="utf-8")
    new.replace(path)


def digits() -> dict[str, str]:
    """The data, prepared where it is not there yet."""
    folder = ROOT / "data" / "digits"
    if not folder.is_dir():
        subprocess.run([sys.executable, ROOT / "entrypoints" / "prepare_digits.py"], cwd=ROOT, check=True)
    return {"train": str(folder / "train"), "validation": str(folder / "validation")}


def main() -> int:
    """Run what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--output", type=Path, default=RESULTS, help="file of the results; runs in this file are not repeated"
    )
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument(
        "--interval",
        type=float,
        default=INTERVAL,
        help="seconds that stand for one minute of the published experiments",
    )
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS), metavar="SETTING")
    parser.add_argument("--ray", action="store_true", help="run the workers on a Ray cluster whose nodes change")
    parser.add_argument("--report", action="store_true", help="run nothing, only print the tables")
    options = parser.parse_args()
    runs = load(options.output)
    here = (options.epochs, options.interval)
    if foreign := [run for run in runs if (run["epochs"], run["interval"]) != here and not options.report]:
        parser.error(
            f"{options.output} has runs of {foreign[0]['epochs']} epochs and {foreign[0]['interval']:g} s a minute; "
            "give the same options, or another --output."
        )
    done = {(run["setting"], run["seed"]) for run in runs}
    for seed in range(1, options.seeds + 1):
        for name in options.settings:
            if options.report or (name, seed) in done:
                continue
            began = time.monotonic()
            with nodes_of(SETTINGS[name]) if options.ray else contextlib.nullcontext() as nodes:
                run = train(
                    SETTINGS[name],
                    seed=seed,
                    epochs=options.epochs,
                    interval=options.interval,
                    inputs=digits(),
                    nodes=nodes,
                )
            runs.append(run)
            save(options.output, runs)
            sizes = " → ".join(str(size) for _, size in run["sizes"])
            print(
                f"{name}, seed {seed}: accuracy {final(run):.4f}, {run['wall_s']:.1f} s with {sizes} workers; "
                f"{time.monotonic() - began:.1f} s in all",
                flush=True,
            )
    print(table(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
