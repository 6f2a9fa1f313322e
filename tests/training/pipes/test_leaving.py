"""A script that leaves does not wait for bytes that may never come."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import forked
import launching
import pytest

from container.formats import tfrecord

SCRIPT = Path(__file__).with_name("leaving.py")
#: The way, whether the compiled reader is there, and the exit code. Readers in Python may meet the end of Python, more
#: often when several processes share a core.
WAYS = (("exception", "1", 1), ("SIGTERM", "0", 3), ("SIGTERM", "0", 3), ("exception", "0", 1))


@pytest.mark.tensorflow
def test_leaving_while_the_stream_stands_still(tmp_path: Path) -> None:
    writers, scripts = [], []
    for number, (way, native, _) in enumerate(WAYS):
        base = tmp_path / str(number)
        data, config = (base / "input" / name for name in ("data", "config"))
        data.mkdir(parents=True)
        config.mkdir()
        (config / "inputdataconfig.json").write_text(json.dumps({"train": {"TrainingInputMode": "Pipe"}}))
        os.mkfifo(data / "train_0")
        writers.append(os.open(data / "train_0", os.O_RDWR))
        os.write(writers[-1], b"".join(tfrecord.encode(b"r%d" % number) for number in range(3)))
        environment = launching.environment(FLEETFIT_NATIVE_PIPE=native, TF_USE_LEGACY_KERAS="0")
        words = forked.command([str(SCRIPT), str(base), way], environment)
        scripts.append(
            subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    try:
        for (_, _, code), script in zip(WAYS, scripts, strict=True):
            said, errors = script.communicate(timeout=200)
            assert (script.returncode, said) == (code, "[b'r0', b'r1']\n"), errors
            assert ("something went wrong" in errors) == (code == 1)
    finally:
        for script in scripts:
            script.kill()
            script.wait()
        for writer in writers:
            os.close(writer)
