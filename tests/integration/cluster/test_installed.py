"""The wheel, installed outside the checkout, beside files with the names of our modules."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import clusters
import pytest

import container
from estimators import TrainingJob, TrainingJobError

ROOT = Path(container.__file__ or "").parents[1]

#: A file that does harm when it is imported.
TRAP = "import sys\nsys.stderr.write('TRAP ' + __file__)\nraise SystemExit('a trap was imported')\n"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built from a copy."""
    if not (ROOT / "setup.py").exists():
        pytest.skip("not a checkout")
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("setup.py", "pyproject.toml", "LICENSE", "README.md"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, source)
    for name in ("container", "estimators", "fleetfit"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    (source / "entrypoints").mkdir()  # must not get in
    (source / "entrypoints" / "x.py").touch()
    done = subprocess.run(
        [
            sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps",
            "--no-build-isolation", "--wheel-dir", str(folder), str(source),
        ],
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with the wheel, and with the other packages of the tests' environment; in a path with a space."""
    python = clusters.small_venv(tmp_path_factory.mktemp("in stalled") / "venv")
    done = subprocess.run(
        [
            sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check",
            "--no-deps", "--no-index", str(wheel),
        ],
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return python


def test_the_wheel_holds_our_three_packages_and_nothing_else(wheel: Path, installed: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"container", "estimators", "fleetfit"}
    patterns = (
        "container/**/*.py", "estimators/**/*.py", "estimators/**/*.pyi", "estimators/**/*.j2", "fleetfit/*.py",
    )  # fmt: skip
    assert {str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern)} <= set(names)
    assert {"container/py.typed", "estimators/py.typed", "fleetfit/py.typed"} <= set(names)
    assert any(name.endswith("entry_points.txt") for name in names)
    program = (
        "import estimators, fleetfit\nfrom fleetfit import TensorFlow\nfrom fleetfit.tuner import HyperparameterTuner\n"
        "print(TensorFlow is estimators.TensorFlow, HyperparameterTuner is estimators.tuner.HyperparameterTuner)"
    )
    done = run(installed, program, tmp_path / "program", tmp_path)
    assert done.stdout.split() == ["True", "True"], done.stderr


def traps(folder: Path) -> Path:
    """A folder with our names, and with those of modules that we use."""
    folder.mkdir(parents=True)
    for name in ("container.py", "estimators.py", "json.py", "logging.py", "socket.py", "signal.py", "supervisor.py"):
        (folder / name).write_text(TRAP)
    return folder


def run(python: Path, program: str, folder: Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program that lies in ``folder`` from the working directory ``cwd``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "program.py"
    path.write_text("import warnings\nwarnings.simplefilter('ignore')\n" + textwrap.dedent(program))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [str(python), str(path)], cwd=cwd, env={**environment, **variables}, capture_output=True, text=True, timeout=120
    )


def code(folder: Path, script: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(textwrap.dedent(script))
    (folder / "aid.py").write_text(clusters.AID)
    return folder


def test_the_installed_wheel_runs_a_job_from_a_folder_full_of_traps(installed: Path, tmp_path: Path) -> None:
    """Our processes import none of what lies in the caller's working directory; nor does the command line."""
    beside = Path(sys.executable).parent
    source = code(
        tmp_path / "code",
        """
        import sys
        import aid
        from mpi4py import MPI
        import container, estimators
        aid.report(total=MPI.COMM_WORLD.allreduce(1), container=container.__file__, estimators=estimators.__file__)
        """,
    )
    done = run(
        installed,
        f"""
        import estimators
        job = estimators.TensorFlow(
            entry_point="train.py", source_dir={str(source)!r}, instance_count=2, instance_type="local_process",
            distribution={{"mpi": {{"enabled": True, "processes_per_host": 1}}}},
        ).fit(job_name="job-1")
        print(estimators.__file__, job.status)
        """,
        tmp_path / "program",
        cwd=traps(tmp_path / "work"),
        PATH=f"{beside}:{os.environ['PATH']}",
    )
    assert done.returncode == 0, done.stderr
    assert "TRAP" not in done.stderr + done.stdout
    assert str(ROOT) not in done.stdout
    site = str(installed.parent.parent)
    job = TrainingJob.attach("job-1")
    for said in clusters.reports(job).values():
        assert said["total"] == 2
        assert said["container"].startswith(site) and said["estimators"].startswith(site)
    assert "TRAP" not in job.record.supervisor_log.read_text()
    done = subprocess.run(
        [str(installed.parent / "fleetfit"), "train", str(code(tmp_path / "other", "print('trained')") / "train.py")],
        cwd=tmp_path / "work",
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "[algo-1:rank 0] trained" in done.stdout
    assert "TRAP" not in done.stderr + done.stdout


def test_names_of_the_standard_library_in_the_source_do_no_harm_to_ours(make: clusters.Make) -> None:
    """The script sees its own ``json``, as when it is run by hand; our wrapper and toolkit never do."""
    files = dict.fromkeys(("socket.py", "json.py", "traceback.py", "select.py", "signal.py", "logging.py"), TRAP)
    with pytest.raises(TrainingJobError) as caught:
        make.run("print('ran', flush=True)\nraise ValueError('boom')", processes=1, files=files)
    assert (caught.value.rank, caught.value.exit_code) == (0, 1)
    assert str(caught.value).endswith("ValueError: boom")
    assert clusters.printed(caught.value.job)[0] == "ran"  # type: ignore[arg-type]
    job = make.run("import json\nprint(json.mine)", hosts=2, files={"json.py": "mine = 'the script’s own'\n"})
    assert clusters.printed(job) == ["the script’s own"] * 2
