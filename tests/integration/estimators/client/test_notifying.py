"""Word of ends, stalls, NaN and divergence, by a command and by a real HTTP server."""

from __future__ import annotations

import http.server
import json
import shlex
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from estimators import TensorFlow, TrainingJobError
from estimators.callbacks import NotifyCallback
from estimators.cli import main as cli
from estimators.client import notifying

#: Is silent until somebody has been told so, and then reports what no training should.
SCRIPT = """
import os, time
for loss in ("1", "0.1", "3", "4", "5", "6", "nan"):
    print("loss:", loss, flush=True)
while not os.path.exists(os.environ["STALLED"]):
    time.sleep(0.01)
raise RuntimeError("asked to fail")
"""


@pytest.fixture
def server() -> Iterator[tuple[str, list[dict[str, Any]], list[int]]]:
    """A server: its URL, what was posted to it, and the statuses that it answers before 200."""
    posted: list[dict[str, Any]] = []
    answers: list[int] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(answers.pop(0) if answers else 200)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{served.server_port}/s3cret-hook", posted, answers
        served.shutdown()
        thread.join()


@pytest.fixture
def estimator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TensorFlow:
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "quick.py").write_text("print('done')")
    (tmp_path / "tell.py").write_text(
        "import os, pathlib, sys\n"
        "pathlib.Path(os.environ['FLEETFIT_OCCASION'] + '.json').write_text(sys.stdin.read())\n"
    )
    return TensorFlow(
        entry_point="train.py",
        model_dir=False,
        metric_definitions=[{"Name": "loss", "Regex": "loss: ([0-9.]+)"}],
        environment={"STALLED": str(tmp_path / "stalled.json")},
    )


def test_everything_that_there_may_be_word_of(
    estimator: TensorFlow, tmp_path: Path, server: tuple[str, list[dict[str, Any]], list[int]]
) -> None:
    url, posted, answers = server
    answers += [503]  # is asked again
    notify = NotifyCallback([sys.executable, "tell.py"], url, stall=0.5, diverged=5)
    with pytest.raises(TrainingJobError):
        estimator.fit(logs=False, callbacks=[notify])
    name = estimator.latest_training_job.name
    news = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert set(news) == {"diverged", "nan", "stalled", "failed"}
    assert news["diverged"]["text"] == (
        f"training job {name}: metric loss is 5 on rank 0, more than 5 times its lowest value"
    )
    assert news["nan"]["metrics"]["loss"] == 6
    assert news["failed"]["status"] == "Failed"
    assert "asked to fail" in news["failed"]["text"]
    occasions = [one["occasion"] for one in posted]
    assert posted[0] == posted[1], "what was answered with 503 is posted again"
    assert set(occasions) == set(news)


def test_what_is_not_delivered_harms_no_job_and_shows_no_secret(
    estimator: TensorFlow,
    tmp_path: Path,
    server: tuple[str, list[dict[str, Any]], list[int]],
    capfd: pytest.CaptureFixture[str],
) -> None:
    url, posted, answers = server
    answers += [404]
    estimator.entry_point = "quick.py"
    program = tmp_path / "without-its-interpreter"
    program.write_text("#!/nonexistent/interpreter\n")
    program.chmod(0o700)
    broken = [NotifyCallback(["false"], url), NotifyCallback([str(program)]), NotifyCallback(["true"], on="failed")]
    estimator.fit(logs=False, callbacks=broken)
    said = capfd.readouterr().err
    assert "has completed, but the notification was not sent: false exited with code 1." in said
    assert "127.0.0.1: Not Found." in said
    assert str(program) in said
    assert "s3cret" not in said
    assert len(posted) == 1

    # From the shell.
    assert cli.main(["train", "quick.py", "--no-logs", "--notify", shlex.join([sys.executable, "tell.py"])]) == 0
    assert json.loads((tmp_path / "completed.json").read_text())["occasion"] == "completed"


def test_a_command_that_hangs_is_ended_and_reported(
    estimator: TensorFlow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(notifying, "_PATIENCE_S", 0.5)
    command = ["sh", "-c", f"echo $$ > {shlex.quote(str(tmp_path / 'pid'))}; exec sleep 1000"]
    estimator.entry_point = "quick.py"
    estimator.fit(logs=False, callbacks=[NotifyCallback(command)])
    assert "not all notifications were sent within 0.5 s" in capfd.readouterr().err
    pid = (tmp_path / "pid").read_text().strip()
    until(lambda: not Path("/proc", pid).exists())
