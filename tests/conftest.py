"""Settings of all tests."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from container.contract import variables
from container.system import folders, importers

sys.path.append(str(Path(__file__).parent / "support"))  # at the end: it hides nothing

import job_dump
import leaks
import turns

#: Fixtures for all tests: homes and where their jobs run, a loop, installations.
pytest_plugins = ["homes", "installations", "loops"]

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile("fleetfit", deadline=None)
settings.load_profile("fleetfit")

# Collecting thousands of tests makes many objects and no garbage.
gc.set_threshold(100_000)

# A job is many short processes: without bytecode each would compile all of our modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell starts what it puts in the background with SIGINT ignored, and children inherit that: Ctrl-C in the tests'
# programs would do nothing.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what takes long first, so that no process has it left at the end."""
    items.sort(key=lambda item: turns.order(item.nodeid))


def pytest_collection_finish() -> None:
    """Look for garbage only among what the tests make."""
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> turns.Scheduler:
    """Have the tests of one engine in one process."""
    return turns.Scheduler(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Have a test that uses two cores wait for its turn, which is no part of its time."""
    with turns.turn() if turns.is_large(item.nodeid) else contextlib.nullcontext():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """End an engine when the last of its tests is over, as idle ones take their share of the machine, too.

    Pytest itself ends what is there for all tests (``scope="session"``) only when all of a process's tests are over.
    """
    try:
        return (yield)
    finally:
        if nextitem is not None and turns.ends_engine(item.nodeid, nextitem.nodeid):
            item.session._setupstate.teardown_exact(None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests of what is large, and is missing: `make test` has left it out."""
    if item.get_closest_marker("torch") and importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed; `make test-all` installs it")
    if item.get_closest_marker("spark"):
        if importlib.util.find_spec("pyspark") is None:
            pytest.skip("PySpark is not installed; `make test-all` installs it")
        if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
            pytest.skip("Spark needs Java 17 or newer: apt install openjdk-17-jre-headless")


def _refuse_in_ci(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Let what is skipped be a failure in CI, where all that it may need has to be there."""
    if os.environ.get("CI"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome, report.longrepr = "failed", f"In CI nothing is skipped. {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Have a file that skips itself fail, too."""
    report = yield
    if report.skipped:
        _refuse_in_ci(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to a failure what is known of the test's jobs, before its fixtures end these."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and item.get_closest_marker("optional") is None:
        _refuse_in_ci(report)
    if report.failed:
        leaks.failed()
    if report.failed and call.when != "teardown":
        seen = job_dump.dump(Path(os.environ.get("FLEETFIT_HOME", os.devnull)))
        report.sections += [("the test's jobs", seen)] if seen else []
    return report


@pytest.fixture(scope="session")
def prepared_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits as ``entrypoints/prepare_digits.py`` writes them, once for all processes: not to be changed."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    script = Path(__file__).parents[1] / "entrypoints" / "prepare_digits.py"
    if not (folder / "digits" / "manifest.json").exists():  # which is written last
        prepare = [sys.executable, str(script), "--output", str(folder / "digits")]
        subprocess.run(prepare, check=True, stdout=subprocess.DEVNULL)
    return folder / "digits"


@pytest.fixture(autouse=True)
def own_temporary_folder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A ``TMPDIR`` for each test, which fails if something of it is left at its end.

    Its path is short, since sockets lie in it. Ports stay reserved among all tests that run at once.
    """
    tmp_path_factory.getbasetemp()  # else pytest's own folder would be in the first test's
    ports = folders.of_ports()
    ports.mkdir(mode=0o700, exist_ok=True)
    if "warm" in request.fixturenames:  # TensorFlow looks at TMPDIR when it is imported, so it has to be the same
        folder = Path(folders.root()) / f"test-warm-{os.getpid()}"
        shutil.rmtree(folder, ignore_errors=True)  # a process that was being killed may have written there once more
        folder.mkdir(mode=0o700, exist_ok=True)
    else:
        folder = Path(tempfile.mkdtemp(prefix="test-", dir=folders.root()))
    with contextlib.suppress(FileExistsError):
        (folder / ports.name).symlink_to(ports)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    own = [request.getfixturevalue("tmp_path")] if "tmp_path" in request.fixturenames else []
    watch = leaks.Watch(folder, *own)
    yield folder
    (request.node.funcargs or {}).clear()  # what only they refer to is garbage
    expected = [kind for mark in request.node.iter_markers("leaves") for kind in mark.args]
    left = watch.left(request.fixturenames, expected)
    for made in folder.glob(f"{folders.PREFIX}*"):
        for shared in Path("/dev/shm").glob(f"{made.name}-*"):
            shutil.rmtree(shared, ignore_errors=True)
    with contextlib.suppress(OSError):
        (folder / ports.name).unlink()
    shutil.rmtree(folder, ignore_errors=True)
    if left:
        pytest.fail("the test has left behind:\n" + "\n".join(left), pytrace=False)


@pytest.fixture(scope="session")
def kept_importers() -> Iterator[Path]:
    """A folder of importers for the jobs of all tests of this process that take ``warm``; none outlives the tests."""
    folder = Path(tempfile.mkdtemp(prefix="tests-of-fleetfit-", dir="/tmp"))
    yield folder
    _end_importers(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def warm(kept_importers: Path, own_temporary_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the processes of jobs forked from what an earlier test's job has imported, where these are the same.

    What is kept, and what is started cold, is tested in ``tests/integration/cluster``.
    """
    monkeypatch.setenv(variables.KEEP_IMPORTERS, str(kept_importers))
    yield
    _end_importers(kept_importers, but=_KEPT)


#: So many are kept: each has the memory of TensorFlow.
_KEPT = 5


def _end_importers(folder: Path, but: int = 0) -> None:
    """End those that have been used the longest ago."""
    found = sorted(importers.noted(folder), key=lambda one: one.until or float("inf"), reverse=True)
    for one in found[but:]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGTERM)
