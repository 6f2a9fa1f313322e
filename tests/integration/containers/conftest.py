"""A container engine and the images that the tests run in.

In CI a missing engine is a failure; elsewhere these tests skip and say why.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
import tempfile
from pathlib import Path

import clusters
import plain_image
import pytest

from estimators.backends.docker.engine import Engine
from estimators.backends.images.errors import EngineError
from estimators.backends.images.toolkit import IMAGE, TOOLKIT_LABEL, toolkit_digest


@pytest.fixture(scope="session")
def engine() -> Engine:
    """A running engine."""
    found = Engine()
    try:
        found.info()
    except EngineError as error:
        pytest.skip(f"no container engine: {error}")
    return found


@pytest.fixture(scope="session")
def base_image(engine: Engine) -> str:
    """Debian by debootstrap: no registry is needed."""
    return _made(engine, "fleetfit-base", ["image", "base"])


@pytest.fixture(scope="session")
def image(engine: Engine, base_image: str) -> str:
    """The image that jobs run in, with the toolkit of this checkout."""
    return _made(engine, IMAGE, ["image", "build"], label=toolkit_digest())


@pytest.fixture(scope="module")
def user_image(engine: Engine, image: str) -> str:
    """Our image with a ``USER``."""
    name = "fleetfit-test-user"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "Dockerfile").write_text(f"FROM {image}\nRUN useradd --uid 4321 trainer\nUSER trainer\n")
        engine.build(Path(folder), name, {})
    return name


@pytest.fixture(scope="session")
def plain(engine: Engine, base_image: str) -> str:
    """An image without our toolkit, with a ``train`` program."""
    with _lock():
        return plain_image.build(engine, base_image)


def _made(engine: Engine, name: str, command: list[str], label: str | None = None) -> str:
    """An image, made by one of the tests' processes if it is not there (or is of another version of our code)."""
    with _lock():
        there = engine.has_image(name)
        if not there or (label is not None and engine.image(name).labels.get(TOOLKIT_LABEL) != label):
            subprocess.run([str(Path(sys.executable).with_name("fleetfit")), *command], check=True, timeout=1400)
    return name


class _lock:
    """One process at a time: the tests run in several."""

    def __enter__(self) -> None:
        self._file = open("/tmp/fleetfit-tests-images.lock", "w")  # TMPDIR is each test's own
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *exc: object) -> None:
        self._file.close()


@pytest.fixture(autouse=True)
def own_home(home: Path) -> None:
    """A home, also where a test does not ask for it."""


@pytest.fixture
def make(tmp_path: Path, home: Path, image: str) -> clusters.Make:
    """Makes estimators on ``local`` whose code is given as text; marks are in a folder that the containers share."""
    return ContainerMake(tmp_path)


class ContainerMake(clusters.Make):
    """As for processes, in containers."""

    def __call__(self, script: str, **arguments):  # type: ignore[no-untyped-def]
        """Make an estimator; see :class:`clusters.Make`."""
        options = dict(arguments.pop("options", None) or {})
        backend_options = dict(options.pop("backend_options", None) or {})
        mounts = {str(self.marks): "/marks", **backend_options.pop("mounts", {})}
        environment = {"MARKS": "/marks", **(arguments.pop("environment", None) or {})}
        return super().__call__(
            script,
            **{
                "instance_type": "local",
                "options": {**options, "backend_options": {**backend_options, "mounts": mounts}},
                "environment": environment,
                **arguments,
            },
        )
