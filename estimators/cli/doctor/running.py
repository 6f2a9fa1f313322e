"""Run Horovod and mpirun in new processes, to find errors that the metadata of packages does not show.

Horovod is run once with each framework.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from container.system import folders
from estimators.cli.doctor.findings import ReportLine, Verdict

_TIMEOUT_S = 120.0

_BUILT = """
print(json.dumps({"framework": framework, "mpi": bool(hvd.mpi_built()), "gloo": bool(hvd.gloo_built()),
                  "nccl": bool(hvd.nccl_built()), "gpus": gpus}))
"""
#: Programs that import the modules of a training and print the features that Horovod was built with.
_HOROVOD_CHECKS = {
    "tensorflow": """
import json, os
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import tensorflow
import horovod.tensorflow as hvd
import horovod.tensorflow.keras
framework, gpus = f"TensorFlow {tensorflow.__version__}", len(tensorflow.config.list_physical_devices("GPU"))
"""
    + _BUILT,
    "torch": """
import json
import torch
import horovod.torch as hvd
import horovod.torch.elastic
framework, gpus = f"PyTorch {torch.__version__}", torch.cuda.device_count()
"""
    + _BUILT,
}


def horovod(python: str, framework: str, frameworks: Sequence[str]) -> ReportLine:
    """Import a framework and Horovod in a new process, and report the features that Horovod was built with.

    Args:
        python: The interpreter.
        framework: The framework: ``tensorflow`` or ``torch``.
        frameworks: All frameworks that Horovod should support, for the remedy.
    """
    begin = time.monotonic()
    done = _run([python, "-c", _HOROVOD_CHECKS[framework]])
    if done is None or done.returncode != 0:
        text = "the import took too long" if done is None else _last_line(done.stderr)
        return ReportLine.missing(
            "Horovod runs",
            text,
            f"Build Horovod for this environment: `fleetfit install horovod {' '.join(frameworks)}`.",
        )
    facts = json.loads(done.stdout.splitlines()[-1])
    built = ", ".join(name for name in ("mpi", "gloo", "nccl") if facts[name])
    text = f"with {facts['framework']}, built with {built}; import {time.monotonic() - begin:.1f} s"
    if facts["gpus"]:
        text += f", {facts['gpus']} GPU"
    return ReportLine("Horovod runs", Verdict.OK if facts["mpi"] else Verdict.MISSING, text)


def mpirun(program: Path, python: str) -> ReportLine:
    """Start two ranks with mpirun, and report whether both ranks ran."""
    begin = time.monotonic()
    with folders.temporary("doctor", folders.root()) as folder:
        # OpenMPI refuses to run as root unless two variables allow it. Its session files get a folder of their own, as
        # in jobs, because the shared folder may contain files of killed runs.
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        # Each rank creates a file, because mpirun may lose the ranks' output.
        code = "import os, sys; open(os.path.join(sys.argv[1], os.environ['OMPI_COMM_WORLD_RANK']), 'x').close()"
        done = _run(
            [str(program), "-np", "2", "--oversubscribe", python, "-c", code, str(folder)],
            environment={**os.environ, **root, "TMPDIR": str(folder)},
        )
        ranks = sum((folder / rank).exists() for rank in "01")
    if done is not None and done.returncode == 0 and ranks == 2:
        return ReportLine.ok("mpirun runs", f"2 ranks in {time.monotonic() - begin:.2f} s")
    if done is None:
        text = f"mpirun did not end within {_TIMEOUT_S:.0f} s"
    else:
        text = _last_line(done.stderr) or f"mpirun ended with exit code {done.returncode}"
    return ReportLine.missing(
        "mpirun runs", f"{text} ({ranks} of 2 ranks started)", f"To see the error, run `{program} -np 2 hostname`."
    )


def _run(argv: list[str], *, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False, cwd="/",
            env=environment, timeout=_TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip(" -\t")]
    return lines[-1] if lines else ""
