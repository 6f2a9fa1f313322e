"""Channels in Pipe mode under ``fit()``: real clusters of local processes."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from feeding import ROOT, write_objects
from waiting import until

from container.formats import tfrecord
from estimators import MPI, CollectiveAllReduce, ParameterServer, TensorFlow, TrainingJobError
from estimators.inputs import TrainingInput

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore::estimators.PreflightWarning")]
needs_horovod = pytest.mark.skipif(importlib.util.find_spec("horovod") is None, reason="Horovod is not installed")

SHARDED = "ShardedByS3Key"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)


@pytest.fixture
def digits(prepared_digits: Path) -> str:
    return str(prepared_digits / "train")


def fit(script: Path, inputs: dict[str, Any], hosts: int, distribution: Any = None, **hyperparameters: Any) -> Any:
    estimator = TensorFlow(
        entry_point=script.name,
        source_dir=str(script.parent),
        instance_count=hosts,
        instance_type="local_process",
        distribution=distribution,
        hyperparameters=hyperparameters,
    )
    return estimator.fit(inputs, logs=False)


def own_script(folder: Path, text: str) -> Path:
    folder.mkdir()
    script = folder / "script.py"
    script.write_text(text)
    return script


@pytest.mark.landing
@needs_horovod
@pytest.mark.horovod
@pytest.mark.parametrize("each", [1_000, pytest.param(10_000, marks=pytest.mark.soak)])
def test_each_of_four_ranks_reads_its_quarter_of_the_records(each: int, tmp_path: Path) -> None:
    """Eight objects, and one; in Pipe and in File mode; on two hosts of two processes."""
    write_objects(tmp_path / "eight", [each // 2] * 8)
    write_objects(tmp_path / "one", [each * 4])
    eight, one = str(tmp_path / "eight"), str(tmp_path / "one")
    script = own_script(tmp_path / "source", (Path(__file__).with_name("count_records.py")).read_text())
    inputs = {
        "pipe_sharded": TrainingInput(eight, distribution=SHARDED, input_mode="Pipe"),
        "pipe_all": TrainingInput(eight, input_mode="Pipe"),
        "pipe_one": TrainingInput(one, input_mode="Pipe"),
        "file_sharded": TrainingInput(eight, distribution=SHARDED),
        "file_all": eight,
        "file_one": one,
    }
    job = fit(script, inputs, 2, MPI(processes_per_host=2))
    hosts = job.record.path / "hosts"
    found = [json.loads(path.read_text()) for path in sorted(hosts.glob("*/ml/output/data/rank-*.json"))]
    assert len(found) == 4
    for name in inputs:
        numbers = [rank["channels"][name]["numbers"] for rank in found]
        assert [len(of_rank) for of_rank in numbers] == [each] * 4, name
        assert sorted(itertools.chain(*numbers)) == list(range(each * 4)), name
    places = {rank["channels"]["pipe_all"]["place"] for rank in found}
    assert places == {f"{hosts}/algo-{h}/ml/input/data/.rank-{rank}/pipe_all" for h in (1, 2) for rank in (0, 1)}
    left = [entry for entry in hosts.rglob("*") if entry.is_fifo()]
    assert left == []


@needs_horovod
@pytest.mark.horovod
def test_uneven_shares_lose_no_record_and_count_none_twice(tmp_path: Path) -> None:
    """Seven objects over three ranks, and fewer objects than ranks; in Pipe and in File mode."""
    counts = {"seven": [10, 3, 0, 25, 1, 8, 6], "two": [9, 4]}
    inputs = {}
    for name, of in counts.items():
        write_objects(tmp_path / name, of)
        for mode in ("Pipe", "File"):
            inputs[f"{name}_{mode.lower()}"] = TrainingInput(
                str(tmp_path / name), distribution=SHARDED, input_mode=mode
            )
    script = own_script(tmp_path / "source", (Path(__file__).with_name("uneven.py")).read_text())
    job = fit(script, inputs, 3, MPI())
    places = sorted((job.record.path / "hosts").glob("*/ml/output/data/rank-*.json"))
    found = [json.loads(path.read_text()) for path in places]
    assert len(found) == 3
    for name, of in counts.items():
        for mode in ("pipe", "file"):
            numbers = [rank[f"{name}_{mode}"]["numbers"] for rank in found]
            assert sorted(itertools.chain(*numbers)) == list(range(sum(of))), (name, mode, numbers)
            assert len({rank[f"{name}_{mode}"]["steps"] for rank in found}) == 1, "nobody waits for another's step"
            # The mean of 0 … n-1: each record once, whichever rank has it, and though some have none.
            means = [rank[f"{name}_{mode} evaluated"] for rank in found]
            assert means == pytest.approx([(sum(of) - 1) / 2] * len(found)), (name, mode)
    said = b"".join(line[4] for line in job.log_lines()).decode()
    assert "algo-3 gets nothing: there are fewer objects than hosts" in said


def test_parameter_servers_read_in_the_workers(digits: str) -> None:
    """Each worker reads its own host's FIFOs, though Python of the dataset runs in the chief otherwise."""
    script = ROOT / "entrypoints" / "train_pipe.py"
    inputs = {"train": TrainingInput(digits, input_mode="Pipe")}
    job = fit(script, inputs, 2, ParameterServer(), epochs=3, records=1437, **{"batch-size": 32})
    for host in ("algo-1", "algo-2"):
        state = job.record.path / "hosts" / host / "ml" / "pipe_state" / ".train-pipe_mode-state"
        assert int(state.read_text()) >= 1, host


@pytest.mark.soak
def test_collective_with_fewer_objects_than_hosts(digits: str, tmp_path: Path) -> None:
    """One of the hosts has no records at all: it takes part with weight zero."""
    [first, *_] = sorted(Path(digits).iterdir())
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / first.name).symlink_to(first)
    inputs = {"train": TrainingInput(str(alone), distribution=SHARDED, input_mode="Pipe")}
    script = ROOT / "entrypoints" / "train_pipe.py"
    job = fit(script, inputs, 2, CollectiveAllReduce(), epochs=8, **{"batch-size": 16, "learning-rate": 0.003})
    metrics = job.metrics()
    assert metrics[metrics["name"] == "accuracy"]["value"].iloc[-1] > 0.5
    said = b"".join(line[4] for line in job.log_lines()).decode()
    assert "algo-2 gets nothing: there are fewer objects than hosts" in said


def test_faults_end_the_job_and_leaving_early_does_not(tmp_path: Path) -> None:
    write_objects(tmp_path / "data", [10, 10_000])
    script = own_script(
        tmp_path / "source",
        "import sys\n"
        "import tensorflow\n"  # as scripts do, so that all three are forked from one that has imported it
        "from sagemaker_tensorflow import PipeModeDataset\n"
        "take = int(sys.argv[sys.argv.index('--take') + 1])\n"
        "for _ in PipeModeDataset('train', 'TFRecord').take(take): pass\n",
    )
    inputs = {"train": TrainingInput(str(tmp_path / "data"), input_mode="Pipe")}
    job = fit(script, inputs, 1, take=5)
    assert job.status == "Completed"
    second = tmp_path / "data" / "part-01"
    content = bytearray(second.read_bytes())
    size = len(tfrecord.encode(b"r10"))
    content[4 * size + 13] ^= 1
    second.write_bytes(content)
    with pytest.raises(TrainingJobError, match=rf"part-01': record 5 at byte {4 * size}: its data is damaged"):
        fit(script, inputs, 1, take=-1)
    os.truncate(second, second.stat().st_size - 1)
    content[4 * size + 13] ^= 1
    second.write_bytes(content[:-1])
    with pytest.raises(TrainingJobError, match=r"part-01': record 10,000 at byte [0-9,]+: it is cut off"):
        fit(script, inputs, 1, take=-1)


def test_in_the_foreground(tmp_path: Path) -> None:
    """``--debug`` feeds the FIFOs too, until the script is over."""
    write_objects(tmp_path / "data", [10])
    text = "import os\nprint(len(open(os.environ['SM_CHANNEL_TRAIN'] + '_0', 'rb').read()))\n"
    script = own_script(tmp_path / "source", text)
    options = ["--debug", "--input-mode", "Pipe", "--input", f"train={tmp_path / 'data'}"]
    done = subprocess.run(
        [sys.executable, "-m", "estimators.cli.main", "train", str(script), *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == (tmp_path / "data" / "part-00").stat().st_size
    assert [entry for entry in (tmp_path / "home").rglob("*") if entry.is_fifo()] == [], "the agent has not left"


@pytest.mark.parametrize("killed", ["supervisor", "agent"])
def test_neither_agents_nor_fifos_outlive_a_kill(tmp_path: Path, killed: str) -> None:
    write_objects(tmp_path / "data", [10])
    script = own_script(tmp_path / "source", "import time; print('runs', flush=True); time.sleep(600)\n")
    estimator = TensorFlow(
        entry_point=script.name, source_dir=str(script.parent), instance_count=2, instance_type="local_process"
    )
    job = estimator.fit({"train": TrainingInput(str(tmp_path / "data"), input_mode="Pipe")}, wait=False)
    until(lambda: sum(line[4].strip() == b"runs" for line in job.log_lines()) == 2)
    assert len(agents(tmp_path)) == 2
    supervisor = job.record.read_status()["Fleetfit"]["supervisor_pid"]
    os.kill(supervisor if killed == "supervisor" else agents(tmp_path)[0], signal.SIGKILL)
    until(lambda: not agents(tmp_path) and not job.record.is_supervised())
    assert job.status == "Failed"
    assert [path for path in job.record.path.rglob("*") if path.is_fifo()] == []


def agents(folder: Path) -> list[int]:
    """The host agents whose trees are in a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if b"pipe" in words and any(word.startswith(os.fsencode(folder)) for word in words):
                    found.append(int(entry.name))
    return found
