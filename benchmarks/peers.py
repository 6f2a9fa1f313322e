"""fleetfit beside torchrun, Ray Train and the official local mode: launch, a failure's way to the caller, kill −9.

The peers are installed into environments of their own, outside the project's dependencies:
``python -m benchmarks.peers install``; ``$FLEETFIT_PEERS`` is their folder (default ``~/.cache/fleetfit/peers``).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import harness
from benchmarks.containers import engine_seconds
from benchmarks.harness import Numbers, Quiet, Row, median_with_interval

ENVIRONMENT = Path(os.environ.get("FLEETFIT_PEERS") or Path.home() / ".cache" / "fleetfit" / "peers")
#: What is installed there. PyTorch's own index has wheels without CUDA; PyPI's work too, and are larger.
PACKAGES = ("torch", "ray[train]==2.60.*")
#: The official SDK's environment, below. Its local mode wants docker-compose too, and an image with AWS's toolkit.
OFFICIAL = ENVIRONMENT / "official"
OFFICIAL_PACKAGES = ("sagemaker[local]==2.257.7",)
OFFICIAL_IMAGE = os.environ.get("FLEETFIT_PEERS_IMAGE") or "fleetfit-test-official"

_PEERS = harness.HERE / "scripts" / "peers"
#: For one launch, in seconds; a peer that takes longer has failed.
_TIMEOUT = 150.0
#: How long after kill −9 of a launcher its processes are looked for, in seconds.
_AFTER_KILL = 2.0


def install() -> None:
    """Make the peers' environments."""
    for folder, packages in ((ENVIRONMENT, PACKAGES), (OFFICIAL, OFFICIAL_PACKAGES)):
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(folder / "bin/pip"), "install", "--quiet", *packages], check=True)


def run(options: argparse.Namespace) -> None:
    """Measure and record, row by row; what there is when it is cut (Ctrl-C, SIGTERM) is recorded too."""
    if not (ENVIRONMENT / "bin/torchrun").exists():
        raise SystemExit(f"the peers are not installed in {ENVIRONMENT}: python -m benchmarks.peers install")
    # A killed launcher's processes, and what Ray's daemons do not wait for, are nobody's.
    quiet = Quiet(options.patience, engine_seconds, repeats=False)
    measured: dict[str, dict[str, list[Numbers]]] = {}
    failed: dict[str, dict[str, str]] = {}
    with harness.own_home(), tempfile.TemporaryDirectory(prefix="bench-") as folder, harness.terminable():
        try:
            for what in _WHAT:
                _measure(what, Path(folder), options.alternations, quiet, measured, failed)
        finally:
            samples = {"measured": measured, "failed": failed}
            whole = {what: {way: found for way, found in values.items() if found} for what, values in measured.items()}
            rows = [row for what, values in whole.items() for row in rows_of(what, values)]
            if rows:
                harness.record("peers", rows, samples, quiet, dry=options.dry, table=table(whole, failed))


def _measure(
    what: str,
    folder: Path,
    rounds: int | None,
    quiet: Quiet,
    measured: dict[str, dict[str, list[Numbers]]],
    failed: dict[str, dict[str, str]],
) -> None:
    """Measure one row: its numbers go into ``measured`` as they come, what could not be had into ``failed``."""
    failed[what] = {}
    if what == "containers" and (why := _no_containers()) is not None:
        print(f"  without the official local mode: {why}", file=sys.stderr)
        failed[what][OFFICIAL_NAME] = why
        return
    rounds = rounds or _ROUNDS[what]
    print(f"{_WHAT[what][0]}, {rounds} rounds after one to warm up:", file=sys.stderr, flush=True)
    ways = _in_containers(folder) if what == "containers" else _ways(what, folder)
    measured[what] = {}
    harness.alternate(
        rounds, ways, quiet, failures=failed[what], values=measured[what],
        show=lambda numbers: f"{next(iter(numbers.values())):.3g}",
    )  # fmt: skip
    print(table({what: measured[what]}, failed, head=False), file=sys.stderr, flush=True)


#: Ours, and the official SDK's, as the table calls them.
OURS, OFFICIAL_NAME = "fleetfit", "SageMaker's local mode"
_NAMES = (OURS, "torchrun", "Ray Train", OFFICIAL_NAME)
#: What is measured -> its title, the key of its numbers, their unit. In all of them less is better.
_WHAT = {
    "launch": ("two processes that do nothing", "seconds", "s"),
    "failure": ("from one process's exception to the caller's, the other one sleeping", "seconds", "s"),
    "kill": (f"processes alive {_AFTER_KILL:g} s after kill −9 of the launcher", "left", "processes"),
    "containers": ("a one-second script on two containers of the same image, fit()", "seconds", "s"),
}
#: How often each is measured unless said otherwise: all of them together take less than eight minutes.
_ROUNDS = {"launch": 4, "failure": 4, "kill": 3, "containers": 3}


def rows_of(what: str, values: Mapping[str, Sequence[Numbers]]) -> list[Row]:
    """A row for each way; the medians of the others stand beside it. Pure."""
    title, key, unit = _WHAT[what]
    medians = {way: statistics.median(numbers[key] for numbers in found) for way, found in values.items()}
    return [
        Row(
            what=f"{title}: {way}",
            estimate=median_with_interval([numbers[key] for numbers in found]),
            unit=unit,
            beside={other: median for other, median in medians.items() if other != way},
        )
        for way, found in values.items()
    ]


def best(values: Mapping[str, Sequence[Numbers]], key: str) -> list[str]:
    """The way with the least median, and those whose intervals do not tell them from it. Pure."""
    found = {way: median_with_interval([numbers[key] for numbers in rounds]) for way, rounds in values.items()}
    if not found:
        return []
    least = min(found.values(), key=lambda estimate: estimate.value)
    return [way for way, estimate in found.items() if estimate.value == least.value or estimate.low <= least.high]


def table(
    measured: Mapping[str, Mapping[str, Sequence[Numbers]]],
    failed: Mapping[str, Mapping[str, str]],
    *,
    head: bool = True,
) -> str:
    """What was measured, a row each, a column for each launcher, and who is best at it. Pure.

    Args:
        measured: What -> way -> its numbers by round.
        failed: What -> way -> why it has none.
        head: Whether to begin with the titles of the columns, and end with what the table means.
    """
    lines = [["less is better", *_NAMES, "best"], ["---"] * (2 + len(_NAMES))] if head else []
    for what in _WHAT:
        values, reasons = measured.get(what, {}), failed.get(what, {})
        if not values and not (head and reasons):
            continue
        title, key, unit = _WHAT[what]
        counts = {len(rounds) for rounds in values.values()}
        cells = [f"{title}, {unit}" + (f" ({'–'.join(map(str, sorted(counts)))} rounds)" if counts else "")]
        for way in _NAMES:
            if way in reasons:
                cells.append(f"failed: {reasons[way]}" if values else f"not measured: {reasons[way]}")
            elif way in values:
                estimate = median_with_interval([numbers[key] for numbers in values[way]])
                cells.append(f"{estimate.value:.3g} ({estimate.low:.3g} to {estimate.high:.3g})")
            else:
                cells.append("–")
        winners = best(values, key)
        if len(winners) > 1 and len(winners) == len(values):
            cells.append("no difference seen")
        else:
            cells.append(", ".join(way if way == OURS else f"**{way}**" for way in winners) or "–")
        lines.append(cells)
    text = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    if not head:
        return text
    return (
        f"{text}\n\nMedians with their 95 % intervals. *Best* has the least median, and whatever its interval does not "
        "tell from that; a peer that is best is set in bold."
    )


def _ways(what: str, folder: Path) -> dict[str, Callable[[], Numbers]]:
    """Each way to do a thing, in a process of its own."""
    python = ENVIRONMENT / "bin/python"
    torchrun = [str(ENVIRONMENT / "bin/torchrun"), "--standalone", "--nproc-per-node", "2", str(_PEERS / "script.py")]
    commands = {
        OURS: [sys.executable, str(_PEERS / "with_fleetfit.py")],
        "torchrun": torchrun,
        "Ray Train": [str(python), str(_PEERS / "with_ray.py")],
    }
    measure = {"launch": _launch, "failure": _failure, "kill": _kill}[what]
    return {
        name: lambda command=command, name=name: measure(command, folder / f"{what}-{name.replace(' ', '-')}")  # type: ignore[misc]
        for name, command in commands.items()
    }


def _launch(command: list[str], folder: Path) -> Numbers:
    began = time.monotonic()
    with _started(command, "launch", folder) as process:
        _wait(process)
        seconds = time.monotonic() - began
    if process.returncode:  # it would be the fastest of all
        raise RuntimeError(_last_words(command, process, folder))
    return {"seconds": seconds}


def _failure(command: list[str], folder: Path) -> Numbers:
    """The failing process notes when it raises; the launcher's caller, its end, when it knows."""
    with _started(command, "failure", folder) as process:
        _wait(process)
        ended = time.time()
    if not process.returncode or not (folder / "raised").exists():
        raise RuntimeError(_last_words(command, process, folder))
    return {"seconds": ended - float((folder / "raised").read_text())}


def _kill(command: list[str], folder: Path) -> Numbers:
    with _started(command, "kill", folder) as process:
        until = time.monotonic() + _TIMEOUT
        while len(list(folder.glob("pid-*"))) < 2:
            if time.monotonic() > until:
                raise RuntimeError(f"its processes did not start within {_TIMEOUT:g} s")
            if process.poll() is not None:
                raise RuntimeError(f"its processes did not start: {_last_words(command, process, folder)}")
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)  # to it alone, not to its group
        process.wait()
    pids = [int(path.read_text()) for path in folder.glob("pid-*")]
    time.sleep(_AFTER_KILL)
    left = [pid for pid in pids if _is_alive(pid)]
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _stop_ray(command)
    return {"left": float(len(left))}


def _no_containers() -> str | None:
    """Why the official local mode cannot be measured here; None where it can."""
    if not (OFFICIAL / "bin/python").exists():
        return f"the SDK is not installed in {OFFICIAL}"
    if shutil.which("docker-compose") is None:
        return "docker-compose is missing"
    image = subprocess.run(["docker", "image", "inspect", OFFICIAL_IMAGE], capture_output=True, check=False)
    if image.returncode:
        return f"there is no image {OFFICIAL_IMAGE!r} (tests/support/official_image.py makes it)"
    return None


def _in_containers(folder: Path) -> dict[str, Callable[[], Numbers]]:
    """``fit()`` on two containers of the image that the official local mode runs."""
    pythons = {"fleetfit": sys.executable, "official": str(OFFICIAL / "bin/python")}
    titles = {"fleetfit": OURS, "official": OFFICIAL_NAME}
    return {titles[kind]: lambda kind=kind, python=python: _contained(kind, python, folder)  # type: ignore[misc]
            for kind, python in pythons.items()}  # fmt: skip


def _contained(kind: str, python: str, folder: Path) -> Numbers:
    with tempfile.TemporaryDirectory(dir=folder) as own:
        command = [python, str(_PEERS / "in_containers.py"), kind, OFFICIAL_IMAGE, own]
        try:
            subprocess.run(
                command, check=True, cwd=harness.HERE.parent, stdin=subprocess.DEVNULL, capture_output=True,
                timeout=_TIMEOUT, env={**os.environ, "PYTHONPATH": str(harness.HERE.parent)},
            )  # fmt: skip
            return {"seconds": float(Path(own, "seconds").read_text())}
        finally:
            _tidy()


def _tidy() -> None:
    """The official local mode leaves its containers."""
    found = subprocess.run(
        [
            *("docker", "ps", "--all", "--quiet", "--filter", f"ancestor={OFFICIAL_IMAGE}"),
            *("--filter", "network=sagemaker-local", "--filter", "status=exited"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.stdout.split():
        subprocess.run(["docker", "rm", *found.stdout.split()], capture_output=True, check=False)


def _wait(process: subprocess.Popen[bytes]) -> None:
    """Wait for a launcher's end.

    Raises:
        RuntimeError: it does not end.
    """
    try:
        process.wait(_TIMEOUT)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"it did not end within {_TIMEOUT:g} s") from None


def _last_words(command: Sequence[str], process: subprocess.Popen[bytes], folder: Path) -> str:
    """How a launcher ended, and the last line that it wrote."""
    lines = [line for line in (folder / "said").read_text(errors="replace").splitlines() if line.strip()]
    return f"{Path(command[-1]).name} ended with {process.returncode}" + (f": {lines[-1].strip()}" if lines else "")


def _stop_ray(command: list[str]) -> None:
    """Ray's own processes outlive its driver's kill -9."""
    if command[-1].endswith("with_ray.py"):
        subprocess.run([str(ENVIRONMENT / "bin/ray"), "stop", "--force"], capture_output=True, check=False)


@contextlib.contextmanager
def _started(command: list[str], what: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A launcher; if it still runs at the end, it is ended with all that it started."""
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    with open(folder / "said", "wb") as said:
        process = subprocess.Popen(
            command,
            env={**os.environ, "PEERS_WHAT": what, "PEERS_FOLDER": str(folder), "RAY_DEDUP_LOGS": "0"},
            cwd=harness.HERE.parent,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            _stop_ray(command)


def _is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return stat[stat.rindex(")") + 2] != "Z"


if __name__ == "__main__":
    if sys.argv[1:] != ["install"]:
        sys.exit("python -m benchmarks.peers install; or python -m benchmarks peers")
    warnings.simplefilter("default")
    install()
