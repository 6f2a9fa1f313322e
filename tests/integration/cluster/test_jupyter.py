"""A real kernel: fit() streams in the cell, and interrupting the kernel stops the job and not the kernel."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import clusters
import pytest

from estimators import TrainingJob
from estimators.backends.hosts import kept
from estimators.records.record import job_names

jupyter_client = pytest.importorskip("jupyter_client")
pytest.importorskip("ipykernel")


class Kernel:
    """A kernel, and what its cells print.

    Args:
        folder: Its working directory.
    """

    def __init__(self, folder: Path) -> None:
        self._manager, self._client = jupyter_client.manager.start_new_kernel(cwd=str(folder))

    def close(self) -> None:
        """End it."""
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)

    def interrupt(self) -> None:
        """The stop button."""
        self._manager.interrupt_kernel()

    def send(self, code: str) -> str:
        """Start a cell."""
        return str(self._client.execute(code))

    def follow(self, cell: str, on_text: Callable[[str], None] = lambda text: None) -> Cell:
        """Read what a cell prints until it is done."""
        result = Cell()
        while True:
            message = self._client.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") != cell:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                result.text += content["text"]
                on_text(result.text)
            elif kind == "update_display_data" or "fleetfit-pane" in content.get("data", {}).get("text/html", ""):
                result.pane = content["data"]["text/html"]
                on_text(result.plain)
            elif kind in ("display_data", "execute_result"):
                result.html += content["data"].get("text/html", "")
                result.shown += content["data"].get("text/plain", "")
            elif kind == "error":
                result.error = content["ename"]
                result.message = content["evalue"]
                result.frames = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(content["traceback"]))
            elif kind == "status" and content["execution_state"] == "idle":
                return result

    def run(self, code: str) -> Cell:
        """Run a cell to its end."""
        return self.follow(self.send(code))


class Cell:
    """The outputs of a cell."""

    def __init__(self) -> None:
        self.text = self.html = self.shown = self.error = self.message = self.pane = self.frames = ""

    @property
    def plain(self) -> str:
        """What was printed, without colours, and what the pane of a waiting call has in its logs."""
        logs = re.search(r"<pre[^>]*>(.*?)</pre></div></details>", self.pane, re.DOTALL)
        return re.sub(r"\x1b\[[0-9;]*m", "", self.text) + (html.unescape(logs[1]) if logs is not None else "")


def times(text: str, said: str) -> int:
    """How many ranks are shown to have said it, in lines of their own or in one (``×2``)."""
    return sum(int(match[1] or 1) for match in re.finditer(rf"\[algo-\d:rank \d(?: ×(\d))?\] {said}\n", text))


@pytest.fixture
def kernel(tmp_path: Path, home: Path) -> Iterator[Kernel]:
    one = Kernel(tmp_path)
    yield one
    one.close()


def setup(kernel: Kernel, make: clusters.Make, script: str, **settings: Any) -> None:
    """Make ``estimator`` in the kernel."""
    estimator = make(script, **settings)
    cell = kernel.run(
        "import warnings; warnings.simplefilter('ignore')\n"
        "from estimators import *\n"
        f"estimator = TensorFlow(entry_point='train.py', source_dir={estimator.settings.source_dir!r}, "
        f"instance_count=2, instance_type='local_process', distribution=MPI(processes_per_host=1), "
        f"environment={{'MARKS': {str(make.marks)!r}}})"
    )
    assert cell.error == "", cell.message


@pytest.mark.landing
def test_cells_show_jobs_their_ends_and_their_failures(kernel: Kernel, make: clusters.Make) -> None:
    setup(
        kernel,
        make,
        """
        import os
        import aid
        print("first")
        aid.wait_for("seen")
        print("second")
        if os.environ["TRAINING_JOB_NAME"] == "job-3" and aid.RANK == 1:
            raise ValueError("no data")
        if os.environ["TRAINING_JOB_NAME"] != "job-1":
            aid.wait_for("go")
        """,
    )

    def seen(text: str) -> None:
        if times(text, "first") == 2 and not (make.marks / "seen").exists():
            assert "second" not in text
            make.mark("seen")

    cell = kernel.follow(kernel.send("job = estimator.fit(job_name='job-1')\njob"), seen)
    assert cell.error == "", cell.message
    for word in ("first", "second"):  # of both ranks
        assert times(cell.plain, word) == 2
    assert "job-1" in cell.pane and "Completed" in cell.pane
    assert "<details><summary>logs" in cell.pane and cell.text == ""
    assert cell.html == "" and cell.shown == "<TrainingJob 'job-1': Completed>"  # the pane has the table
    shown = kernel.run("job")
    assert "job-1" in shown.html
    plan = kernel.run("estimator.plan()")
    assert "mpirun" in plan.html and plan.error == ""

    cell = kernel.run("job = estimator.fit(job_name='job-2', wait=False)\nprint(job.status)")
    assert cell.text == "InProgress\n"  # nobody waits for it
    make.mark("go")
    assert kernel.run("job.wait(logs=False)\nprint(job.status)").text == "Completed\n"
    assert kernel.run("job.logs(all=True)").plain.count("second") == 2

    (make.marks / "go").unlink()
    cell = kernel.run("estimator.fit(job_name='job-3')")
    assert cell.error == "TrainingJobError"
    assert cell.message.endswith("ValueError: no data")
    assert "algo-2, rank 1" in cell.message
    # The cell and the message, whose last words are the script's traceback; nothing of fleetfit's own.
    assert "estimator.fit(" in cell.frames and "estimators/" not in cell.frames
    assert cell.frames.rstrip().endswith("ValueError: no data")
    assert "flex:none;overflow:visible" in cell.pane  # the pane scrolls, and not the text in it

    cell = kernel.run("def train():\n    raise LookupError('no table')\nEstimator(entry_point=train).fit()")
    assert cell.error == "TrainingJobError" and re.search(r'File "Cell In\[\d+\]", line 2, in train\n', cell.message)
    assert "    raise LookupError('no table')\n" in cell.message

    cell = kernel.run(
        "from estimators.remote_function import remote\n@remote\ndef far():\n    raise LookupError('far')\nfar()"
    )
    assert cell.error == "LookupError" and "line 4, in far\n" in cell.frames
    assert "far()" in cell.frames and "estimators/" not in cell.frames

    cell = kernel.run("def helper():\n    return TensorFlow(entry_pont='train.py')\nhelper()")
    assert cell.error == "ArgumentNameError"
    assert "entry_pont='train.py'" in cell.frames and "helper()" in cell.frames
    assert "Did you mean 'entry_point'?" in cell.frames
    assert len(cell.frames.splitlines()) < 20 and "estimators/" not in cell.frames


def test_an_interrupt_stops_the_job_and_not_the_kernel_whose_end_stops_it_too(
    kernel: Kernel, make: clusters.Make
) -> None:
    setup(
        kernel,
        make,
        """
        import signal, sys, time
        import aid
        def save(number, frame):
            print("saved", flush=True)
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        print("ready", flush=True)
        time.sleep(300)
        """,
    )
    snapshots: list[clusters.Snapshot] = []

    def interrupt(text: str) -> None:
        if times(text, "ready") == 2 and not snapshots:
            snapshots.append(clusters.Snapshot(TrainingJob.attach("job-1")))
            kernel.interrupt()

    output = kernel.follow(kernel.send("kept = 42\nestimator.fit(job_name='job-1')"), interrupt)
    assert output.error == "KeyboardInterrupt"
    assert times(output.plain, "saved") == 2
    [snapshot] = snapshots
    assert snapshot.job.status == "Stopped"
    assert snapshot.left() == []
    after = kernel.run("print(kept, estimator.latest_training_job.status)")
    assert after.text == "42 Stopped\n"
    kernel.send("estimator.fit(job_name='job-2')")
    clusters.until(lambda: "job-2" in job_names())
    job = TrainingJob.attach("job-2")
    clusters.until(lambda: clusters.printed(job).count("ready") == 2)
    snapshot = clusters.Snapshot(job)
    kernel._manager.shutdown_kernel(now=True)
    snapshot.await_end()
    assert clusters.await_terminal(job) == "Stopped"


def test_what_a_cell_has_imported_is_kept_as_long_as_the_kernel(
    kernel: Kernel, make: clusters.Make, home: Path
) -> None:
    setup(kernel, make, "import numpy\nimport aid\n")
    kernel.run("import os; os.environ['FLEETFIT_FORK'] = '1'")
    first, second = (kernel.run("job = estimator.fit()") for _ in range(2))
    assert "numpy stays loaded for 10 minutes (" in first.pane and "keep_alive_period_in_seconds=0" in first.pane
    assert "stays loaded" not in second.pane and first.text == second.text == ""
    (one,) = kept.find(home)
    assert one.until is not None
    told = kernel.run("print([event.data['seconds'] for event in job.record.events('importer')])")
    assert told.text == "[0.0, 0.0]\n"
    kernel.close()
    clusters.until(lambda: not kept.find(home) and clusters.process(one.pid) is None)
