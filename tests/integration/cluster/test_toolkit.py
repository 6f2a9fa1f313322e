"""``python -m container train`` by itself, with nothing but the files that SageMaker gives a container."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import clusters
import pytest
from toolkits import lines, printed, start, tree

from container.contract import wire


def test_a_script_runs_from_sagemakers_files_alone(tmp_path: Path) -> None:
    base = tree(
        tmp_path,
        "import os, sys\nprint(sys.argv[1:])\nprint(os.environ['SM_CHANNEL_TRAIN'], os.environ['SM_NUM_CPUS'] > '0')\n"
        "print([name for name in os.environ if name.startswith('FLEETFIT_') and 'FD' in name])\n",
    )
    process = start(base)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert printed(output) == [
        "['--epochs', '3', '--name', 'a b', '--plain', 'not json']",
        f"{base / 'input' / 'data' / 'train'} True",
        "[]",
    ]
    assert (base / "output" / "success").exists() and not (base / "output" / "failure").exists()


def test_a_failed_script_is_exit_code_1_and_a_failure_file(tmp_path: Path) -> None:
    base = tree(tmp_path, "raise ValueError('no data')")
    process = start(base)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    failure = (base / "output" / "failure").read_text()
    assert failure.startswith("algo-1, rank 0: ValueError: no data (exited with code 1)")
    assert failure.endswith("ValueError: no data") and len(failure) <= 1024
    (event,) = (item for item in lines(output) if isinstance(item, wire.Event) and item.kind == "failure")
    assert event.data["message"] == "ValueError: no data (exited with code 1)"
    assert not (base / "output" / "success").exists()


@pytest.mark.parametrize("mode", ["warn", "fail"])
def test_ranks_that_join_nobody(mode: str, tmp_path: Path) -> None:
    """Also where nobody but the toolkit could fail the job, as on SageMaker."""
    strategy = {"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2"}
    base = tree(tmp_path, "print('alone')", **strategy, fleetfit_on_undistributed=json.dumps(mode))
    process = start(base)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == (1 if mode == "fail" else 0)
    warned = [item.data["message"] for item in lines(output) if isinstance(item, wire.Event) and item.kind == "warning"]
    text = "under mpi none of the 2 ranks joined the others"
    if mode == "fail":
        assert warned == [] and text in (base / "output" / "failure").read_text()
    else:
        assert len(warned) == 1 and text in warned[0]


def test_a_reported_metric_that_is_not_a_number_ends_the_job_where_that_was_asked_for(tmp_path: Path) -> None:
    script = (
        "import time\nfrom container.contract import events\n"
        "events.emit('metric', name='loss', value=float('nan'), epoch=2)\ntime.sleep(600)\n"
    )
    base = tree(tmp_path, script, fleetfit_on_nan='"fail"')
    process = start(base)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1, output
    assert "metric 'loss' is not a number (NaN) at epoch 2" in (base / "output" / "failure").read_text()


def test_what_is_noticed_has_two_ways_to_go(tmp_path: Path) -> None:
    base = tree(tmp_path, "", fleetfit_on_nan='"fial"')
    process = start(base)
    process.communicate(timeout=60)
    assert process.returncode == 1
    assert "unknown fleetfit_on_nan 'fial'. Did you mean 'fail'?" in (base / "output" / "failure").read_text()


def test_sigterm_gives_the_script_time_to_save(tmp_path: Path) -> None:
    """As SageMaker stops a container."""
    base = tree(
        tmp_path,
        "import signal, sys, time\n"
        "def save(number, frame):\n    time.sleep(1); print('saved', flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\nprint('ready', flush=True)\ntime.sleep(60)\n",
    )
    process = start(base)
    assert process.stdout is not None
    for line in process.stdout:
        if b"] ready" in line:
            break
    process.send_signal(signal.SIGTERM)
    assert b"saved" in process.stdout.read()
    assert process.wait(10) == 128 + signal.SIGTERM
    assert not (base / "output" / "failure").exists()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("hyperparameters", "{", ["hyperparameters.json", "not valid JSON"]),
        ("hyperparameters", "{}", ["names no entry point"]),
        ("hyperparameters", '{"sagemaker_program": "no.py"}', ["no.py"]),
        ("resourceconfig", '{"current_host": "x", "hosts": ["algo-1"]}', ["resourceconfig.json", "'x'"]),
        (
            "hyperparameters",
            json.dumps(
                {
                    "sagemaker_program": "train.py",
                    "sagemaker_mpi_enabled": "true",
                    "sagemaker_parameter_server_enabled": "true",
                }
            ),
            ["several strategies"],
        ),
    ],
)  # fmt: skip
def test_files_that_make_no_sense_are_named(name: str, content: str, words: list[str], tmp_path: Path) -> None:
    base = tree(tmp_path, "print('never')")
    (base / "input" / "config" / f"{name}.json").write_text(content)
    process = start(base)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert printed(output) == []
    failure = (base / "output" / "failure").read_text()
    for word in words:
        assert word in failure


def test_mpi_from_sagemakers_hyperparameters(tmp_path: Path) -> None:
    """What the SageMaker SDK 2.x sends for ``distribution={"mpi": …}``."""
    base = tree(
        tmp_path,
        "from mpi4py import MPI\nprint('size', MPI.COMM_WORLD.allreduce(1), flush=True)\n",
        sagemaker_mpi_enabled="true",
        sagemaker_mpi_num_of_processes_per_host="2",
        sagemaker_mpi_custom_mpi_options='""',
    )
    process = start(base)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output.decode()
    assert printed(output) == ["size 2", "size 2"]


@pytest.fixture
def fixed_port() -> Iterator[None]:
    """The control connection's fixed port, for one test at a time."""
    with open(f"/tmp/fleetfit-tests-{os.getuid()}.lock", "w") as lock:  # TMPDIR is each test's own
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.mark.usefixtures("fixed_port")
def test_hosts_that_find_each_other_by_name(tmp_path: Path) -> None:
    """Two hosts with addresses of their own and the fixed port, as containers have; no backend helps them."""
    hosts = ("127.0.0.1", "127.0.0.2")
    script = "import os\nprint('on', os.environ['SM_CURRENT_HOST'], flush=True)\n"
    trees = [tree(tmp_path, script, hosts=hosts, host=host) for host in hosts]
    second = start(trees[1])  # the one that connects is up first
    assert second.stdout is not None and second.stdout.readline()
    first = start(trees[0])
    outputs = [process.communicate(timeout=60)[0] for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], outputs
    assert [printed(output) for output in outputs] == [["on 127.0.0.1"], ["on 127.0.0.2"]]


@pytest.mark.usefixtures("fixed_port")
def test_the_whole_cluster_fails_with_one_host(tmp_path: Path) -> None:
    hosts = ("127.0.0.1", "127.0.0.2")
    script = (
        "import os, time\nif os.environ['SM_CURRENT_HOST'].endswith('2'):\n    raise ValueError('here')\ntime.sleep(60)"
    )
    trees = [tree(tmp_path, script, hosts=hosts, host=host) for host in hosts]
    processes = [start(base) for base in trees]
    for process in processes:
        process.communicate(timeout=30)
    assert [process.returncode for process in processes] == [1, 1]
    texts = {(base / "output" / "failure").read_text() for base in trees}
    assert len(texts) == 1
    assert texts.pop().startswith("127.0.0.2, rank 1: ValueError: here")


def test_a_host_that_does_not_come_is_named(tmp_path: Path) -> None:
    base = tree(tmp_path, "print('never')", hosts=("algo-1", "algo-2", "algo-3"))
    process = start(base, FLEETFIT_START_TIMEOUT="1", FLEETFIT_CONTROL_ADDRESS="127.0.0.1:0")
    process.communicate(timeout=30)
    assert process.returncode == 1
    assert "algo-2, algo-3 did not answer within 1 s" in (base / "output" / "failure").read_text()


def test_a_host_that_finds_no_first_host_says_so(tmp_path: Path) -> None:
    base = tree(tmp_path, "print('never')", hosts=("algo-1", "algo-2"), host="algo-2")
    process = start(base, FLEETFIT_START_TIMEOUT="1", FLEETFIT_CONTROL_ADDRESS="127.0.0.1:9")
    process.communicate(timeout=30)
    assert process.returncode == 1
    failure = (base / "output" / "failure").read_text()
    assert "algo-1 was lost" in failure and "127.0.0.1:9" in failure


@pytest.mark.leaves("folders")
def test_sigkill_of_the_toolkit_takes_everything_with_it(tmp_path: Path) -> None:
    """No supervisor is there to tidy up: what the ranks start by ordinary means ends with them."""
    script = "import subprocess, sys, time\nprint('ready', flush=True)\ntime.sleep(300)\n"
    base = tree(tmp_path, script, sagemaker_mpi_enabled="true", sagemaker_mpi_num_of_processes_per_host="2")
    process = start(base)
    assert process.stdout is not None
    seen = 0
    while seen < 2:
        seen += b"] ready" in process.stdout.readline()
    family = clusters.below(process.pid)
    assert [one.kind for one in family].count("rank") == 2
    process.kill()
    try:
        clusters.until(lambda: not any(one.alive for one in family))
    finally:
        for one in family:
            with contextlib.suppress(ProcessLookupError):
                one.kill()
        process.wait()
