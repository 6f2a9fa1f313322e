"""The wheel, installed outside the checkout, beside files with the names of our modules."""

from __future__ import annotations

import os
import re
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


#: A user's script. Type checkers accept every line but those that are marked.
TYPED = """
from pathlib import Path

from estimators import MPI, Estimator, FailurePolicy, PyTorch, RunOptions, TensorFlow, TorchDistributed, TrainingJob
from estimators import Tensorflow  # wrong
from estimators import WandbCallback  # wrong
from estimators.callbacks import Callback, Metric
from estimators.faults import Interrupt, Kill, RemoveHost, SpotMarket
from estimators.inputs import TrainingInput
from estimators.tuner import ContinuousParameter, HyperparameterTuner


class Printing(Callback):
    def on_metric(self, job: TrainingJob, metric: Metric) -> None:
        print(job.name, metric.name, metric.value)


options = RunOptions(stop_grace=30, failure_policy=FailurePolicy(max_failures=2), backend_options={"cpus": 2})
RunOptions(faults=[Kill(rank=1, at_step=50)], on_nan="fail", queue="default", needs={"cores": 2})
RemoveHost("algo-2", at_s=20)
Interrupt("algo-1", at_step=3)
SpotMarket(trace=[(20, "algo-2")])
Kill(at_step=5)  # wrong
RunOptions(stop_grase=30)  # wrong
RunOptions(on_nan="ignore")  # wrong
estimator = TensorFlow(
    entry_point="train.py", source_dir=Path("code"), dependencies=["lib"], instance_count=2, run_options=options,
    distribution=MPI(processes_per_host=2), hyperparameters={"epochs": 4}, tags={"team": "vision"}, model_dir=False,
    metric_definitions=[{"Name": "loss", "Regex": "loss: ([0-9.]+)"}],
)
TensorFlow(entrypoint="train.py")  # wrong
TensorFlow(instance_count="2")  # wrong
Estimator("image:1", "role", 2, "ml.p3.2xlarge", distribution={"mpi": {"enabled": True}})
Estimator(model_dir="model")  # wrong
Estimator(entry_point=lambda epochs: epochs, hyperparameters={"epochs": 2})
PyTorch("train.py", distribution=TorchDistributed(processes_per_host=2))
estimator.instance_count = 4
estimator.instance_cuont = 4  # wrong
data = {"train": "data", "test": TrainingInput("s3://bucket/test")}
job = estimator.fit(data, logs="All", callbacks=[Printing()], faults=[Kill(rank=1, at_step=50)], all=True)
estimator.fit(Path("data"), wait=False, job_name="job-1", callbacks=Printing())
estimator.fit(wait=True, log=False)  # wrong
estimator.fit(logs="Everything")  # wrong
estimator.fit(3)  # wrong
estimator.fitt()  # wrong
launch = job.phases["launch"]
print(job.metrics().tail(), launch is not None and launch > 3, job.status, job.result().final_metrics["loss"])
job.wait(timeout=3, all=True)
tuner = HyperparameterTuner(estimator, "loss", {"rate": ContinuousParameter(0.1, 1.0)})
HyperparameterTuner(estimator, "loss", {}, max_job=3)  # wrong
Tensorflow, WandbCallback
"""


@pytest.mark.parametrize("checker", ["mypy --python-executable", "pyright --pythonpath"])
def test_type_checkers_know_the_names_and_arguments(checker: str, installed: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(TYPED)
    done = subprocess.run(
        [sys.executable, "-m", *checker.split(), str(installed), "script.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    found = {int(line) for line in re.findall(r"script\.py:(\d+).* error", done.stdout)}
    marked = {number for number, line in enumerate(TYPED.splitlines(), 1) if line.endswith("# wrong")}
    assert found == marked, done.stdout + done.stderr


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
