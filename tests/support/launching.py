"""Clusters started by hand, as scripts for SageMaker are: mpirun, or TF_CONFIG. Nothing of fleetfit's launchers.

Their processes are forked from one that has imported TensorFlow; see :mod:`forked`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import forked
import pytest

from container.toolkit import ports

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "entrypoints"
CHECKS = ROOT / "tests" / "training" / "distributed" / "checks.py"
#: For the programs: the checkout, and `quick/sitecustomize.py`, which Python imports as it starts.
PYTHONPATH = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support" / "quick")])
MPIRUN = Path(sys.executable).with_name("mpirun")
needs_horovod = pytest.mark.skipif(
    importlib.util.find_spec("horovod") is None or not MPIRUN.exists(), reason="Horovod is not installed"
)

TIMEOUT_S = 500


@dataclasses.dataclass(frozen=True)
class Ended:
    """A process that has ended.

    Attributes:
        name: ``rank 0``, ``ps 1`` …
        code: Its exit code.
        text: What it printed.
    """

    name: str
    code: int
    text: str


def environment(**changes: str) -> dict[str, str]:
    """A quiet environment without another cluster's traces; with one Keras, so that all are forked from one process."""
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SM_", "OMPI_", "PMI", "HOROVOD_", "FLEETFIT_", "TF_"))
    }
    return {
        **own,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_ENABLE_ONEDNN_OPTS": "0",
        "TF_USE_LEGACY_KERAS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": PYTHONPATH,
        # A program of MPI's that runs alone looks for its helpers there.
        "PATH": os.pathsep.join([str(MPIRUN.parent), os.environ.get("PATH", os.defpath)]),
        "PYTHONUNBUFFERED": "1",
        **changes,
    }


def alone(argv: Sequence[str], *, pass_fds: Sequence[int] = (), **variables: str) -> Ended:
    """One process."""
    return _run([("process", argv, variables)], pass_fds=pass_fds)[0]


def mpirun(ranks: int, argv: Sequence[str], **variables: str) -> Ended:
    """Ranks under mpirun; their outputs are one text."""
    # Paths of sockets have at most 108 bytes.
    folder = tempfile.mkdtemp(prefix="mpi-", dir="/tmp")
    command = [str(MPIRUN), "--allow-run-as-root", "--oversubscribe", "-np", str(ranks), "--bind-to", "none"]
    options = ["--mca", "btl_vader_single_copy_mechanism", "none", "--mca", "mpi_yield_when_idle", "1"]
    try:
        program = forked.command(argv, environment(**variables))
        return _run([("mpirun", [*command, *options, *program], {**variables, "TMPDIR": folder})])[0]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def collective(ranks: int, argv: Sequence[str], **variables: str) -> list[Ended]:
    """Workers of a MultiWorkerMirroredStrategy."""
    with reserved_ports(ranks) as numbers:
        cluster = {"worker": [f"127.0.0.1:{port}" for port in numbers]}
        return _run(
            [
                (f"rank {rank}", argv, {**variables, "TF_CONFIG": _tf_config(cluster, "worker", rank)})
                for rank in range(ranks)
            ]
        )


def parameter_servers(workers: int, servers: int, argv: Sequence[str], **variables: str) -> list[Ended]:
    """A chief, workers and servers; the chief comes first in the result.

    Args:
        workers: How many workers.
        servers: How many parameter servers.
        argv: The script and its arguments.
        variables: For all.
    """
    with reserved_ports(1 + workers + servers) as numbers:
        addresses = [f"127.0.0.1:{port}" for port in numbers]
        cluster = {"chief": addresses[:1], "worker": addresses[1 : 1 + workers], "ps": addresses[1 + workers :]}
        serve = ["-c", "import sys; from container.distributed.tensorflow import server; sys.exit(server.serve())"]
        tasks = [("chief", 0), *(("worker", i) for i in range(workers)), *(("ps", i) for i in range(servers))]
        return _run(
            [
                (
                    f"{kind} {index}",
                    serve if kind == "ps" else argv,
                    {**variables, "TF_CONFIG": _tf_config(cluster, kind, index)},
                )
                for kind, index in tasks
            ]
        )


@contextlib.contextmanager
def reserved_ports(count: int) -> Iterator[tuple[int, ...]]:
    """Ports that nobody uses, and that no other test or job takes before the block ends."""
    reserved = ports.reserve(count)
    try:
        yield reserved.numbers
    finally:
        reserved.close()


def _tf_config(cluster: Mapping[str, Sequence[str]], kind: str, index: int) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


def _run(plans: Sequence[tuple[str, Sequence[str], Mapping[str, str]]], *, pass_fds: Sequence[int] = ()) -> list[Ended]:
    """Start processes, wait for them all, and leave none."""
    started: list[tuple[str, subprocess.Popen[bytes], IO[bytes]]] = []
    try:
        for name, argv, variables in plans:
            output = tempfile.TemporaryFile()  # noqa: SIM115 - read when the process has ended
            env = environment(**variables)
            process = subprocess.Popen(
                argv if name == "mpirun" else forked.command(argv, env),
                env=env,
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=tuple(pass_fds),
            )
            started.append((name, process, output))
        deadline = time.monotonic() + TIMEOUT_S
        for _, process, _ in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
    finally:
        for _, process, _ in started:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    found = []
    for name, process, output in started:
        output.seek(0)
        found.append(Ended(name, process.returncode, output.read().decode("utf-8", "replace")))
        output.close()
    return found
