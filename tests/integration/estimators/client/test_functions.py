"""Functions as entry points on this machine: what they get, what they give back, and what runs where."""

from __future__ import annotations

import concurrent.futures
import functools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import clusters
import pytest

from estimators import ConfigurationError, Estimator, RecordError, TrainingJob, TrainingJobError
from estimators.inputs import Channel
from estimators.records.record import job_names
from estimators.remote_function import RemoteExecutor, remote


def run(function: Callable[..., Any], inputs: Any = None, **arguments: Any) -> TrainingJob:
    return Estimator(entry_point=function, environment=clusters.FORKED, **arguments).fit(inputs, logs=False)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path / "home"))
    (tmp_path / "none.yaml").touch()
    monkeypatch.setenv("SAGEMAKER_USER_CONFIG_OVERRIDE", str(tmp_path / "none.yaml"))
    monkeypatch.setenv("SAGEMAKER_ADMIN_CONFIG_OVERRIDE", str(tmp_path / "none.yaml"))
    yield tmp_path / "home"
    clusters.kill_everything_of(tmp_path / "home")


def test_hyperparameters_and_channels_are_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "numbers").write_text("1 2 3")

    class Model:
        """Keeps what it was made with."""

        def __init__(self, size: int) -> None:
            self.size = size

        def train(
            self, rate: float, epochs: int, shuffle: bool, name: str, train: Channel, steps: int | None = None, rest=6
        ) -> Any:
            with open(f"{train}/numbers") as file:
                return self.size * epochs, rate, shuffle, name, train.name, file.read(), steps, rest

    given = {"rate": 1, "shuffle": False, "name": "a b; $HOME", "steps": 7}
    method = functools.partial(Model(5).train, epochs=4)
    job = run(method, {"train": str(tmp_path / "data")}, hyperparameters=given)
    assert job.value() == (20, 1.0, False, "a b; $HOME", "train", "1 2 3", 7, 6)
    described = job.record.source_dir / "fleetfit_function" / "function.json"
    assert "self, rate: float" in described.read_text()


def test_functions_with_a_cache_are_packed_too() -> None:
    @functools.lru_cache(maxsize=3, typed=True)
    def fibonacci(number: int) -> int:
        return number if number < 2 else fibonacci(number - 1) + fibonacci(number - 2)

    double = functools.cache(functools.partial(int.__mul__, 2))

    @functools.cache
    def train(number: int) -> Any:
        return fibonacci(number), fibonacci.cache_parameters(), fibonacci.__name__, double(4)

    fibonacci(5)
    found = run(train, hyperparameters={"number": 20}).value()
    assert found == (6765, {"maxsize": 3, "typed": True}, "fibonacci", 8)


def test_a_path_of_the_jobs_outputs_is_one_of_this_machine_and_what_cannot_be_packed_is_told_of() -> None:
    table = os.urandom(11_000_000)

    def train() -> Path:
        folder = Path(os.environ["SM_MODEL_DIR"]) / "export"
        folder.mkdir()
        (folder / "weights").write_text(str(len(table)))
        return folder

    job = run(train, capture_limit=12_000_000)
    assert (job.value() / "weights").read_text() == "11000000"
    assert job.value() == TrainingJob.attach(job.name).value()
    lost = run(lambda: threading.Lock())
    assert lost.status == "Completed"
    with pytest.raises(Exception, match=r"the function's return value was lost: lock cannot be packed"):
        lost.value()


def test_exceptions_are_of_the_functions_own_types() -> None:
    class EmptyError(OSError):
        """An own type, which takes what it does not pass on, and carries what cannot be sent."""

        def __init__(self, epochs: int, *, place: str) -> None:
            super().__init__(2, "no data", place)
            self.epochs = epochs
            self.lock = threading.Lock()

    def train(epochs: int) -> None:
        raise EmptyError(epochs, place="train")

    with pytest.raises(TrainingJobError, match=r"EmptyError: \[Errno 2\] no data: 'train'") as caught:
        run(train, hyperparameters={"epochs": 3})
    assert isinstance(caught.value.__cause__, EmptyError)
    with pytest.raises(EmptyError) as raised:
        caught.value.job.value()
    assert (raised.value.strerror, raised.value.filename, raised.value.epochs) == ("no data", "train", 3)
    assert not hasattr(raised.value, "lock")
    assert 'raise EmptyError(epochs, place="train")' in str(raised.value.__cause__)


DEBUGGED = """
from estimators import CollectiveAllReduce, Estimator, TrainingJobError

def train(epochs: int):
    if epochs < 0:
        raise LookupError("no epochs", epochs)
    breakpoint()
    return epochs * 2

made = dict(entry_point=train, instance_count=2, distribution=CollectiveAllReduce())
print("returned", Estimator(**made, hyperparameters={"epochs": 4}).debug())
try:
    Estimator(**made, hyperparameters={"epochs": -1}).debug()
except TrainingJobError as error:
    print("raised", repr(error.__cause__))
"""


def test_a_function_is_debugged_in_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(DEBUGGED)
    asked = "p 'epochs are', epochs\nepochs = 21\nc\n"
    ended = subprocess.run([sys.executable, "main.py"], cwd=tmp_path, input=asked, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "('epochs are', 4)" in ended.stdout
    assert "returned 42" in ended.stdout and "raised LookupError('no epochs', -1)" in ended.stdout


MAIN = """
import functools, multiprocessing, os, pickle
from estimators import Estimator
from lab import layers

class Model:
    def __init__(self, weight):
        self.weight = weight
    def double(self):
        return times(self.weight, 2)

def times(a, b):
    return a * b

def main(value):  # as the program's own is called that runs a job's function
    return times(value, value)

class Config:
    pass

config = Config()

def train(rank: int = 3, scale=1):
    model = pickle.loads(pickle.dumps(Model(rank)))
    pickle.loads(pickle.dumps(config))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        squares = pool.map(main, [1, 2, 3])
        doubled = pool.apply(Model(4).double)
    import late
    files = sorted({*os.listdir()} - {"__pycache__"})
    return model.double(), squares, doubled, model, layers.width() * late.HEIGHT, files

if __name__ == "__main__":
    job = Estimator(entry_point=functools.partial(train, scale=2), hyperparameters={"rank": 5}).fit(logs=False)
    double, squares, doubled, model, area, files = job.value()
    print(double, squares, doubled, type(model) is Model, model.weight, area, *files)
"""


def test_the_callers_own_and_modules_of_the_project_come_with_it_also_into_spawned_processes(tmp_path: Path) -> None:
    files = {
        "main.py": MAIN,
        "lab/__init__.py": "",
        "lab/layers.py": "import constants\n\ndef width(): return constants.WIDTH\n",
        "constants.py": "WIDTH = 12\n",
        "late.py": "HEIGHT = 3\n",
        "unused.py": "raise SystemExit('nobody imports this')\n",
    }
    (tmp_path / "lab").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    done = subprocess.run([sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True)
    there = "constants.py fleetfit_function lab late.py run_train.py"
    assert done.stdout == f"10 [1, 4, 9] 8 True 5 36 {there}\n", done.stderr


# --- @remote ---


def test_a_call_runs_as_a_job_and_returns_its_value_or_raises_what_the_function_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Defaults are those of the SDK's file; within a job a decorated function is the function itself."""
    (tmp_path / "config.yaml").write_text(
        textwrap.dedent("""
        SchemaVersion: '1.0'
        SageMaker:
          PythonSDK:
            Modules:
              RemoteFunction:
                InstanceType: local_process
                EnvironmentVariables: {"UNIT": "km"}
                S3RootUri: s3://nobody/reads/this
        """)
    )
    monkeypatch.setenv("SAGEMAKER_USER_CONFIG_OVERRIDE", str(tmp_path))
    outputs = str(tmp_path / "outputs")

    @remote(s3_root_uri=outputs)
    def double(number: int) -> int:
        return 2 * number

    class Model:
        factor = 3

        @remote(s3_root_uri=outputs, job_name_prefix="factorial")
        def factorial(self, number: int, *, units: list[str]) -> str:
            """Return a number's factorial, many times."""
            if number == 0:
                return f"{double(self.factor)} {os.environ['UNIT']} {units}"
            return f"{number} {self.factorial(number - 1, units=units)}"

    assert Model().factorial(2, units=["m"]) == "2 1 6 km ['m']"
    (name,) = job_names()
    assert name.startswith("factorial-") and f"training job {name}" in capsys.readouterr().out
    assert Model.factorial.__doc__ == "Return a number's factorial, many times."
    assert list((tmp_path / "outputs").iterdir())

    @remote(s3_root_uri=outputs)
    def fail() -> None:
        raise LookupError("nothing there")

    with pytest.raises(LookupError, match="nothing there") as caught:
        fail()
    assert 'raise LookupError("nothing there")' in str(caught.value.__cause__)


def test_an_executor_runs_several_at_once_and_stops_what_nobody_needs(tmp_path: Path) -> None:
    def meet(number: int) -> int:
        (tmp_path / f"here-{number}").touch()
        for _ in range(600):
            if (tmp_path / f"here-{1 - number}").exists():
                return number * 10
            time.sleep(0.05)
        raise TimeoutError("the other did not come")

    def wait() -> None:
        (tmp_path / "waits").touch()
        signal.pause()

    with RemoteExecutor(max_parallel_jobs=2, environment_variables=clusters.FORKED) as executor:
        assert executor.map(meet, [0, 1]) == [0, 10]
        with pytest.raises(ConfigurationError, match="cannot be pickled"):
            executor.submit(id, threading.Lock())
        with pytest.raises(TypeError, match=r"wait\(\) cannot be called like this: too many"):
            executor.submit(wait, 1)
        running = executor.submit(wait)
        with pytest.raises(TimeoutError, match="not ended within 0"):
            running.wait(0)
        clusters.until((tmp_path / "waits").exists)
        assert running.cancel()
        with pytest.raises(concurrent.futures.CancelledError):
            running.result(30)
        assert running.job is not None and running.job.status == "Stopped"
        with pytest.raises(RecordError, match="returned no value"):
            running.job.value()
    with pytest.raises(RuntimeError, match="has been shut down"):
        executor.submit(wait)


def test_an_executors_job_has_the_code_and_the_arguments_of_when_it_was_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "edited.py").write_text("VALUE = 1")
    (tmp_path / "project" / ".gitignore").write_text("*.pkl\nrun_*")  # of no concern to what was taken already
    monkeypatch.syspath_prepend(tmp_path / "project")

    def wait() -> None:
        for _ in range(1200):
            if (tmp_path / "go").exists():
                return
            time.sleep(0.05)
        raise TimeoutError("nobody edited")

    def value(given: list[int]) -> int:
        import edited

        return int(edited.VALUE) + sum(given)

    with RemoteExecutor(environment_variables=clusters.FORKED, include_local_workdir=False) as executor:
        first = executor.submit(wait)
        values = [4]
        before = executor.submit(value, values)
        values.append(100)  # too late for that job
        (tmp_path / "project" / "edited.py").write_text("VALUE = 'two'")
        (tmp_path / "project" / "edited.py").write_text("VALUE = 22")
        after = executor.submit(value, [])
        (tmp_path / "project" / "edited.py").unlink()
        (tmp_path / "go").touch()
        before.wait(200)
        assert [first.result(), before.result(), after.result()] == [None, 5, 22]
        assert before.job is not None and before.job.status == "Completed"
        kept = Path(executor._folder.name)
        assert kept.is_dir()
    assert not kept.exists()
