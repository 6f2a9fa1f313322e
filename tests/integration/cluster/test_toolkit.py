"""``python -m container train`` by itself, with nothing but the files that SageMaker gives a container."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import clusters
import pytest
from toolkits import lines, printed, start, tree

from container.contract import wire

#: What SageMaker's SDK sends for ``distribution={"mpi": …}``.
TWO_RANKS = {
    "sagemaker_mpi_enabled": "true",
    "sagemaker_mpi_num_of_processes_per_host": "2",
    "sagemaker_mpi_custom_mpi_options": '""',
}


@pytest.mark.parametrize("parameters", [{}, TWO_RANKS], ids=["script", "mpi"])
def test_a_script_runs_from_sagemakers_files_alone(parameters: dict[str, str], tmp_path: Path) -> None:
    script = """
import os, sys
print(sys.argv[1:])
print(os.environ["SM_CHANNEL_TRAIN"], os.environ["SM_NUM_CPUS"] > "0")
print([name for name in os.environ if name.startswith("FLEETFIT_") and "FD" in name])
if "OMPI_COMM_WORLD_RANK" in os.environ:
    from mpi4py import MPI
    print("size", MPI.COMM_WORLD.allreduce(1))
"""
    base = tree(tmp_path, script, **parameters)
    process = start(base)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output.decode()
    expected = [
        "['--epochs', '3', '--name', 'a b', '--plain', 'not json']",
        f"{base / 'input' / 'data' / 'train'} True",
        "[]",
    ]
    assert sorted(printed(output)) == sorted([*expected, "size 2"] * 2 if parameters else expected)
    assert (base / "output" / "success").exists() and not (base / "output" / "failure").exists()


def test_a_process_that_the_script_starts_reports_metrics(tmp_path: Path) -> None:
    inner = "from container.contract import events; events.emit('metric', name='loss', value=0.5)"
    process = start(tree(tmp_path, f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"))
    output, _ = process.communicate(timeout=60)
    assert b'"kind":"metric"' in output and b'"rank":0' in output


DIVERGES = """
import time
from container.contract import events
events.emit('metric', name='loss', value=float('nan'), epoch=2)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("script", "parameters", "words"),
    [
        ("raise ValueError('no data')", {}, "algo-1, rank 0: ValueError: no data (exited with code 1)"),
        ("print('never')", {"fleetfit_on_nan": '"fial"'}, "unknown fleetfit_on_nan 'fial'. Did you mean 'fail'?"),
        ("print('never')", {"sagemaker_program": "no.py"}, "no.py"),
        # Also where nobody but the toolkit could fail the job, as on SageMaker.
        (
            "print('alone')",
            {**TWO_RANKS, "fleetfit_on_undistributed": '"fail"'},
            "under mpi none of the 2 ranks joined",
        ),
        (DIVERGES, {"fleetfit_on_nan": '"fail"'}, "metric 'loss' is not a number (NaN) at epoch 2"),
    ],
    ids=["exception", "option", "file", "undistributed", "NaN"],
)
def test_a_failure_is_exit_code_1_and_a_file(
    script: str, parameters: dict[str, str], words: str, tmp_path: Path
) -> None:
    base = tree(tmp_path, script, **parameters)
    process = start(base)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1, output
    assert words in (base / "output" / "failure").read_text()
    assert not (base / "output" / "success").exists()
    assert "never" not in printed(output)
    [event] = [item for item in lines(output) if isinstance(item, wire.Event) and item.kind == "failure"]
    assert words.partition(": ")[2] in event.data["message"]


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


@pytest.fixture
def fixed_port() -> Iterator[None]:
    """The control connection's fixed port, for one test at a time."""
    with open(f"/tmp/fleetfit-tests-{os.getuid()}.lock", "w") as lock:  # TMPDIR is each test's own
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.mark.usefixtures("fixed_port")
@pytest.mark.parametrize("fails", [False, True])
def test_hosts_that_find_each_other_by_name_end_alike(fails: bool, tmp_path: Path) -> None:
    """Two hosts with addresses of their own and the fixed port, as containers have; no backend helps them."""
    hosts = ("127.0.0.1", "127.0.0.2")
    script = f"""
import os, time
print('on', os.environ['SM_CURRENT_HOST'], flush=True)
if {fails}:
    if os.environ['SM_CURRENT_HOST'].endswith('2'):
        raise ValueError('here')
    time.sleep(60)
"""
    trees = [tree(tmp_path, script, hosts=hosts, host=host) for host in hosts]
    processes = [start(base) for base in reversed(trees)]  # the one that connects comes first
    outputs = [process.communicate(timeout=60)[0] for process in reversed(processes)]
    assert [process.returncode for process in processes] == [int(fails)] * 2, outputs
    if not fails:
        assert [printed(output) for output in outputs] == [["on 127.0.0.1"], ["on 127.0.0.2"]]
    else:
        first, second = ((base / "output" / "failure").read_text() for base in trees)
        assert first == second and first.startswith("127.0.0.2, rank 1: ValueError: here")


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
