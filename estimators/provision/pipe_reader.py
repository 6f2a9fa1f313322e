"""Compile the Pipe mode reader, the library with which TensorFlow reads named pipes.

The source is ``container/pipe_dataset/reader.cc``. The compilation takes about a second, and needs TensorFlow's C
headers, which are part of TensorFlow's wheel. Without the library, channels in Pipe mode are read more slowly.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from container.contract.pipes import library_file
from estimators.provision import commands, horovod
from estimators.provision.errors import CompilerMissing, PipeReaderUnavailable
from estimators.provision.packages import Installation
from estimators.provision.progress import SILENT, ProgressDisplay

SOURCE = Path(__file__).resolve().parents[2] / "container" / "pipe_dataset" / "reader.cc"
_LOG = "pipe-reader"
_OPTIONS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-s", "-Wl,--no-undefined")


def target(prefix: Path) -> Path:
    """Return the path at which the compiled library is stored in an environment."""
    return library_file(prefix, SOURCE)


def install(installation: Installation, *, progress: ProgressDisplay = SILENT) -> Path:
    """Compile the Pipe mode reader for an environment's TensorFlow.

    Args:
        installation: The environment.
        progress: The display of the progress.

    Returns:
        The path of the compiled library.

    Raises:
        PipeReaderUnavailable: a compiler or TensorFlow is missing, or the compilation fails.
    """
    tensorflow = installation.packages / "tensorflow"
    framework = next(iter(sorted(tensorflow.glob("libtensorflow_framework.so.*"))), None)
    if framework is None:
        raise PipeReaderUnavailable(
            f"The Pipe mode reader is compiled for TensorFlow, which is not installed in {installation.prefix}",
            "Install TensorFlow, and run the same command again.",
        )
    try:
        cxx = horovod.compiler()
    except CompilerMissing:
        raise PipeReaderUnavailable(
            "Channels in Pipe mode will be read more slowly: there is no C++ compiler to build the fast reader",
            "Install one, for example with `sudo apt-get install g++`, and run the same command again.",
        ) from None
    made = target(installation.prefix)
    made.parent.mkdir(parents=True, exist_ok=True)
    staged = made.with_name(f".{uuid.uuid4().hex}.so")
    libraries = (f"-L{tensorflow}", f"-l:{framework.name}")
    progress.detail("compiling")
    try:
        finished = commands.run(
            [cxx, *_OPTIONS, f"-I{tensorflow / 'include'}", str(SOURCE), "-o", str(staged), *libraries],
            log=installation.log(_LOG),
            environment=installation.environment(),
        )
        if finished.returncode:
            raise PipeReaderUnavailable(
                "Channels in Pipe mode will be read more slowly: the fast reader does not compile",
                f"The compiler's output is in {installation.log(_LOG)}.",
            )
        os.replace(staged, made)
    finally:
        staged.unlink(missing_ok=True)
    for old in made.parent.glob("pipe_reader-*.so"):
        if old != made:
            old.unlink()
    progress.detail("")
    return made
