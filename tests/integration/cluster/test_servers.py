"""Whose end is the job's under parameter servers: every script runs to its end, and what serves is then ended."""

from __future__ import annotations

import tarfile

import clusters

from estimators import ParameterServer

#: Ends as master. As worker it goes on for a second after the master, and writes an output.
GOES_ON = """
import json, os, pathlib, time
import aid

task = json.loads(os.environ["TF_CONFIG"])["task"]
aid.report(task=task["type"])
if task["type"] == "master":
    aid.mark("master", os.getpid())
    raise SystemExit
aid.wait_for("master")
master = int(pathlib.Path(aid.MARKS, "master").read_text())
while os.path.exists(f"/proc/{master}"):
    time.sleep(0.01)
until = time.monotonic() + 1.0
while time.monotonic() < until:
    time.sleep(0.01)
pathlib.Path(os.environ["SM_OUTPUT_DATA_DIR"], "worker.txt").write_text("whole")
"""

#: Stands in for TensorFlow's module: it takes no four seconds to import.
SERVER = """
import threading

class Server:
    def join(self):
        threading.Event().wait()
"""

#: Ends as chief when the workers serve; they say no more, and never end.
SERVES = """
import json, os
import aid
from tensorflow.python.training.server_lib import Server

task = json.loads(os.environ["TF_CONFIG"])["task"]
if task["type"] == "worker":
    aid.mark(f"serves-{task['index']}")
    Server().join()
for index in (0, 1):
    aid.wait_for(f"serves-{index}")
"""


def test_workers_run_to_their_end_after_the_master(make: clusters.Make) -> None:
    """SageMaker's dict gives its cluster: the script once on each host."""
    job = make.run(GOES_ON, hosts=2, distribution={"parameter_server": {"enabled": True}})
    assert job.status == "Completed"
    assert {rank: said["task"] for rank, said in clusters.reports(job).items()} == {0: "master", 1: "worker"}
    with tarfile.open(job.record.path / "output" / "output.tar.gz") as files:
        member = next(name for name in files.getnames() if name.endswith("worker.txt"))
        content = files.extractfile(member)
        assert content is not None and content.read() == b"whole"


def test_scripts_that_join_their_server_are_ended_with_the_chief(make: clusters.Make) -> None:
    package = {
        f"tensorflow/{name}": "" for name in ("__init__.py", "python/__init__.py", "python/training/__init__.py")
    }
    files = {**package, "tensorflow/python/training/server_lib.py": SERVER}
    job = make.run(SERVES, hosts=2, distribution=ParameterServer(), files=files, max_run=120)
    assert job.status == "Completed", job.describe()
