"""The toolkit by itself: a host's tree, its process, and what that prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import container
from container.contract import wire

MAIN = Path(container.__file__ or "").parent / "__main__.py"


def tree(
    folder: Path, script: str, *, hosts: tuple[str, ...] = ("algo-1",), host: str = "algo-1", **parameters: Any
) -> Path:
    """An ``/opt/ml`` with a script in it."""
    base = folder / host / "ml"
    (base / "input" / "config").mkdir(parents=True)
    (base / "input" / "data" / "train").mkdir(parents=True)
    (base / "code").mkdir()
    (base / "code" / "train.py").write_text(script)
    hyperparameters = {
        "sagemaker_program": "train.py",
        "epochs": "3",
        "name": '"a b"',
        "plain": "not json",
        **parameters,
    }
    files = {
        "hyperparameters": hyperparameters,
        "resourceconfig": {"current_host": host, "hosts": list(hosts), "network_interface_name": "lo"},
        "inputdataconfig": {"train": {"TrainingInputMode": "File", "S3DistributionType": "FullyReplicated"}},
    }
    for name, content in files.items():
        (base / "input" / "config" / f"{name}.json").write_text(json.dumps(content))
    return base


def start(base: Path, **variables: str) -> subprocess.Popen[bytes]:
    """Start the toolkit on a tree."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FLEETFIT_", "SM_"))}
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(MAIN), "train"],
        env={**inherited, "SAGEMAKER_BASE_DIR": str(base), **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd="/",
    )


def lines(output: bytes) -> list[wire.Piece | wire.Event | bytes]:
    return [wire.decode_line(line) for line in wire.split_pieces(bytearray(output), final=True)]


def printed(output: bytes) -> list[str]:
    """What the ranks printed."""
    return [
        item.data.decode().rstrip("\n")
        for item in lines(output)
        if isinstance(item, wire.Piece) and item.rank is not None
    ]
