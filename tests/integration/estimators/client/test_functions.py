"""Functions as entry points on this machine: what they get, what they give back, and what is refused before a start."""

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

from estimators import (
    Channel,
    ConfigurationError,
    Estimator,
    RecordError,
    RemoteExecutor,
    TrainingJob,
    TrainingJobError,
    UnsupportedError,
    compare,
    remote,
)
from estimators.client.functions import packing
from estimators.records.record import job_names


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


# --- what they get, and give back ---


def test_hyperparameters_and_channels_are_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "numbers").write_text("1 2 3")

    def train(rate: float, epochs: int, shuffle: bool, name: str, train: Channel, steps: int | None = None) -> Any:
        with open(f"{train}/numbers") as file:
            return rate, epochs, shuffle, name, train.name, file.read(), steps

    given = {"rate": 1, "epochs": 4, "shuffle": False, "name": "a b; $HOME", "steps": 7}
    job = run(train, {"train": str(tmp_path / "data")}, hyperparameters=given)
    assert job.value() == (1.0, 4, False, "a b; $HOME", "train", "1 2 3", 7)
    described = job.record.source_dir / "fleetfit_function" / "function.json"
    assert "def train(rate: float" in described.read_text()


def test_a_method_a_partial_and_a_lambda_run_as_well() -> None:
    class Model:
        """Keeps what it was made with."""

        def __init__(self, size: int) -> None:
            self.size = size

        def train(self, epochs: int) -> int:
            return self.size * epochs

    assert run(Model(5).train, hyperparameters={"epochs": 3}).value() == 15
    assert run(functools.partial(Model(5).train, epochs=2)).value() == 10
    assert run(lambda epochs=6: epochs).value() == 6


def test_modules_of_the_project_come_with_it(tmp_path: Path) -> None:
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "__init__.py").write_text("")
    (tmp_path / "lab" / "layers.py").write_text("import constants\n\ndef width(): return constants.WIDTH\n")
    (tmp_path / "constants.py").write_text("WIDTH = 12\n")
    (tmp_path / "late.py").write_text("HEIGHT = 3\n")
    (tmp_path / "unused.py").write_text("raise SystemExit('nobody imports this')\n")
    (tmp_path / "main.py").write_text(
        textwrap.dedent("""
        import os
        from estimators import Estimator
        from lab import layers

        def train():
            import late
            return layers.width() * late.HEIGHT, sorted({*os.listdir()} - {"__pycache__"})

        if __name__ == "__main__":
            print(Estimator(entry_point=train).fit(logs=False).value())
        """)
    )
    ended = subprocess.run([sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    names = ["constants.py", "fleetfit_function", "lab", "late.py", "run_train.py"]
    assert ended.stdout.strip() == str((36, names))


def test_files_of_one_name_keep_their_own_lines(tmp_path: Path) -> None:
    functions = {}
    for name in ("outer", "inner"):
        (tmp_path / name).mkdir()
        place = tmp_path / name / "cell.py"
        call = "inner()" if name == "outer" else "1 / 0"
        place.write_text(f"def {name}():\n    return {call}  # of {name}\n")
        exec(compile(place.read_text(), str(place), "exec"), functions)
    functions["inner"].__module__ = functions["outer"].__module__ = "__main__"
    packed = packing.pack(functions["outer"], hyperparameters={}, channels=(), limit=1_000_000)
    texts = [text for name, text in packed.files.items() if name.startswith("fleetfit_function/sources/")]
    assert sorted(texts) == [
        b"def inner():\n    return 1 / 0  # of inner\n",
        b"def outer():\n    return inner()  # of outer\n",
    ]


def test_a_path_of_the_jobs_outputs_is_one_of_this_machine() -> None:
    def train() -> Path:
        folder = Path(os.environ["SM_MODEL_DIR"]) / "export"
        folder.mkdir()
        (folder / "weights").write_text("0.5")
        return folder

    job = run(train)
    assert (job.value() / "weights").read_text() == "0.5"
    assert job.value() == TrainingJob.attach(job.name).value()


def test_what_cannot_be_packed_is_told_of_and_the_job_is_good() -> None:
    def train() -> Any:
        return threading.Lock()

    job = run(train)
    assert job.status == "Completed"
    with pytest.raises(Exception, match=r"the function's return value was lost: lock cannot be packed"):
        job.value()


def test_a_script_has_no_value(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    job = Estimator(entry_point=str(tmp_path / "train.py")).fit(logs=False)
    with pytest.raises(ConfigurationError, match="ran a script"):
        job.value()


def test_a_job_that_was_stopped_has_no_value(tmp_path: Path) -> None:
    mark = tmp_path / "begun"

    def train() -> None:
        mark.touch()
        signal.pause()

    job = Estimator(entry_point=train).fit(wait=False)
    clusters.until(mark.exists)
    job.stop(wait=True)
    with pytest.raises(RecordError, match="returned no value"):
        job.value()


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


def test_an_exception_whose_pickle_is_none_comes_back_all_the_same() -> None:
    class OddError(Exception):
        def __reduce__(self) -> tuple[Any, ...]:
            return str, ("nothing of it",)

    def train() -> None:
        raise OddError("no data", 3)

    with pytest.raises(TrainingJobError, match="no data") as caught:
        run(train)
    assert isinstance(caught.value.__cause__, OddError)
    assert caught.value.__cause__.args == ("no data", 3)


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


# --- what is refused ---


def generator() -> Any:
    yield 1


async def asynchronous() -> None:
    return None


LOCK = threading.Lock()


def holds_a_lock() -> Any:
    return LOCK


class Session:
    """Holds what cannot be packed, somewhere within."""

    def __init__(self) -> None:
        self.settings = {"lock": threading.Lock()}


def takes(epochs: int, rate: float = 0.1) -> None:
    pass


def takes_by_place(epochs: int, /) -> None:
    pass


def nothing() -> None:
    pass


@pytest.mark.parametrize(
    ("function", "hyperparameters", "words"),
    [
        (generator, {}, r"generator\(\) is a generator"),
        (asynchronous, {}, r"asynchronous\(\) is async"),
        (Session, {}, "Session is a class"),
        (takes, {}, r"takes\(\) needs hyperparameter 'epochs'"),
        (takes, {"epoch": 1}, r"hyperparameter of takes\(\) 'epoch'. Did you mean 'epochs'"),
        (takes, {"epochs": "many"}, r"takes\(\) expects int, got 'many'"),
        (takes, {"epochs": True}, r"takes\(\) expects int, got True"),
        (takes_by_place, {"epochs": 1}, "by position only"),
        (nothing, {"epochs": 1}, r"hyperparameter of nothing\(\) 'epochs'"),
    ],
)
def test_what_does_not_fit_is_refused_before_a_start(
    function: Any, hyperparameters: dict[str, Any], words: str, home: Path
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        run(function, hyperparameters=hyperparameters)
    assert not (home / "jobs").exists() or not list((home / "jobs").iterdir())


def test_a_channel_that_is_missing_is_refused() -> None:
    def train(data: Channel) -> None:
        pass

    with pytest.raises(ConfigurationError, match="needs channel 'data'"):
        run(train)


def test_what_cannot_be_sent_is_named() -> None:
    session, lock = Session(), threading.Lock()

    def train() -> Any:
        return session, lock

    with pytest.raises(
        ConfigurationError, match=r"lock \(a _thread\.lock: cannot pickle .*; session\.settings\['lock'\] \(a _thread"
    ):
        run(train)


def test_what_is_too_large_is_named_with_its_size() -> None:
    table, small = os.urandom(11_000_000), b"x"

    def train() -> int:
        return len(table) + len(small)

    with pytest.raises(
        ConfigurationError,
        match=r"captures 11\.0 MB of values, and the limit is 10\.0 MB\. The values are: table \(11\.0 MB\)",
    ):
        run(train)
    assert run(train, capture_limit=12_000_000).value() == 11_000_001


def test_another_python_is_refused_on_the_host(tmp_path: Path) -> None:
    job = run(nothing)
    described = job.record.source_dir / "fleetfit_function" / "function.json"
    text = described.read_text().replace(f'"python": "{sys.version_info[0]}.{sys.version_info[1]}"', '"python": "3.4"')
    described.write_text(text)
    program = job.record.source_dir / "run_nothing.py"
    ended = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False)
    assert ended.returncode == 1 and "nothing() was packed by Python 3.4, but this host has Python" in ended.stderr


# --- @remote ---


def test_a_call_runs_as_a_job_and_returns_its_value(capsys: pytest.CaptureFixture[str]) -> None:
    @remote(environment_variables={**clusters.FORKED, "UNIT": "m"}, job_name_prefix="adding")
    def add(a: int, *, b: list[int]) -> str:
        """Add them up."""
        return f"{a + sum(b)} {os.environ['UNIT']}"

    assert add(1, b=[2, 3]) == "6 m"
    assert add.__doc__ == "Add them up." and "training job adding-" in capsys.readouterr().out


def test_a_call_raises_what_the_function_raised() -> None:
    @remote
    def fail() -> None:
        raise LookupError("nothing there")

    with pytest.raises(LookupError, match="nothing there") as caught:
        fail()
    assert 'raise LookupError("nothing there")' in str(caught.value.__cause__)


def test_a_decorated_function_within_a_job_is_the_function_itself() -> None:
    @remote
    def double(number: int) -> int:
        return 2 * number

    class Model:
        factor = 3

        @remote(environment_variables=clusters.FORKED)
        def factorial(self, number: int) -> int:
            """Return a number's factorial, many times."""
            return double(self.factor) if number == 0 else number * self.factorial(number - 1)

    assert Model().factorial(3) == 36
    assert len(job_names()) == 1
    with pytest.raises(ConfigurationError, match=r"double\(\) is decorated with @remote.* Give double\.wrapped_func"):
        run(double)
    assert double.wrapped_func(4) == 8
    planned = double.estimator(4).plan()
    assert planned.hosts and len(job_names()) == 1


def test_functions_are_compared_by_their_names() -> None:
    def slow() -> None:
        print("slow")

    @remote(instance_count=2, environment_variables=clusters.FORKED)
    def twice() -> None:
        print("twice")

    comparison = compare(slow, twice)
    assert [(group.name, group.results[0].hosts) for group in comparison.groups] == [("slow", 1), ("twice", 2)]
    with pytest.raises(ConfigurationError, match="is a class"):
        compare(slow, Session)


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, r"adds\(\) cannot be called like this: missing a required argument: 'a'"),
        ((1, 2), {}, "too many positional arguments"),
        ((1,), {"c": 2}, "got an unexpected keyword argument 'c'"),
    ],
)
def test_a_call_that_the_function_does_not_take_is_a_type_error(args: Any, kwargs: Any, words: str, home: Path) -> None:
    @remote
    def adds(a: int) -> int:
        return a

    with pytest.raises(TypeError, match=words):
        adds(*args, **kwargs)
    assert not (home / "jobs").exists()


def test_tags_are_pairs_as_well_and_join_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.yaml").write_text(
        "SageMaker: {PythonSDK: {Modules: {RemoteFunction: {Tags: [{Key: team, Value: a}, {Key: cost, Value: b}]}}}}"
    )
    monkeypatch.setenv("SAGEMAKER_USER_CONFIG_OVERRIDE", str(tmp_path))
    for given in ([("team", "z")], {"team": "z"}, [{"Key": "team", "Value": "z"}]):
        tags = remote(nothing, tags=given).estimator().settings.tags
        assert [(tag.key, tag.value) for tag in tags] == [("team", "z"), ("cost", "b")]


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"instance_cuont": 2}, ConfigurationError, "argument of remote.* Did you mean 'instance_count'"),
        ({"instance_count": 0}, ConfigurationError, "instance_count"),
        ({"pre_execution_commands": ["pip install x"]}, UnsupportedError, "pre_execution_commands is not available"),
        ({"dependencies": "auto_capture"}, UnsupportedError, "conda"),
        ({"use_mpirun": True, "use_torchrun": True}, ConfigurationError, "exclude each other"),
        ({"nproc_per_node": 2}, ConfigurationError, "nproc_per_node is for"),
    ],
)
def test_arguments_of_the_decorator_are_checked_where_they_are_given(
    arguments: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        remote(**arguments)


def test_defaults_are_those_of_the_sdks_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

    @remote(s3_root_uri=str(tmp_path / "outputs"))
    def unit() -> str:
        return os.environ["UNIT"]

    assert unit() == "km"
    assert list((tmp_path / "outputs").iterdir())
    for text, words in (
        ("a: [", r" cannot be read"),
        ("SageMaker: {PythonSDK: {Modules: {RemoteFunction: {InstanceTyp: x}}}}", "Did you mean 'InstanceType'"),
        ("SageMaker: {PythonSDK: {Modules: {RemoteFunction: {VpcConfig: {Subnet: x}}}}}", "Did you mean 'Subnets'"),
    ):
        (tmp_path / "config.yaml").write_text(text)
        with pytest.raises(ConfigurationError, match=words):
            remote(nothing)
    (tmp_path / "config.yaml").unlink()
    with pytest.raises(ConfigurationError, match=r"SAGEMAKER_USER_CONFIG_OVERRIDE\) cannot be read: No such file"):
        remote(nothing)


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
        values = [4]
        future = executor.submit(sum, values)
        values.append(100)  # too late for that job
        with pytest.raises(TimeoutError, match="not ended within 0"):
            future.wait(0)
        future.wait(200)
        assert future.result() == 4 and future.job is not None and future.job.status == "Completed"
        with pytest.raises(ConfigurationError, match="cannot be pickled"):
            executor.submit(id, threading.Lock())
        with pytest.raises(TypeError, match=r"nothing\(\) cannot be called like this: too many"):
            executor.submit(nothing, 1)
        running = executor.submit(wait)
        clusters.until((tmp_path / "waits").exists)
        assert running.cancel()
        with pytest.raises(concurrent.futures.CancelledError):
            running.result(30)
        assert running.job is not None and running.job.status == "Stopped"
    with pytest.raises(RuntimeError, match="has been shut down"):
        executor.submit(nothing)


def test_an_executors_job_has_the_code_of_when_it_was_submitted(
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

    def value() -> int:
        import edited

        return int(edited.VALUE)

    with RemoteExecutor(environment_variables=clusters.FORKED, include_local_workdir=False) as executor:
        first = executor.submit(wait)
        before = executor.submit(value)
        (tmp_path / "project" / "edited.py").write_text("VALUE = 'two'")
        (tmp_path / "project" / "edited.py").write_text("VALUE = 22")
        after = executor.submit(value)
        (tmp_path / "project" / "edited.py").unlink()
        (tmp_path / "go").touch()
        assert [first.result(), before.result(), after.result()] == [None, 1, 22]
        kept = Path(executor._folder.name)
        assert kept.is_dir()
    assert not kept.exists()


MAIN = """
import functools, multiprocessing, pickle
from estimators import Estimator

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
    return model.double(), squares, doubled, model

if __name__ == "__main__":
    job = Estimator(entry_point=functools.partial(train, scale=2), hyperparameters={"rank": 5}).fit(logs=False)
    double, squares, doubled, model = job.value()
    print(double, squares, doubled, type(model) is Model, model.weight)
"""


def test_what_is_the_callers_own_can_be_pickled_and_is_known_to_spawned_processes(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(MAIN)
    done = subprocess.run([sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "10 [1, 4, 9] 8 True 5\n", done.stderr
