"""Real jobs, launched, followed and ended through their handles."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

import pytest
import running
from clusters import printed
from running import processes_of, start
from waiting import until

from estimators.cli.main import main
from estimators.client import ipc_client
from estimators.client import launch as launching
from estimators.client.training_job import TrainingJob
from estimators.job.errors import BackendError, JobExistsError, TrainingJobError
from estimators.records.record import JobRecord, job_names

pytestmark = pytest.mark.usefixtures("home")

HERE = Path(running.__file__).parent

SLEEPER = """
import time
print("ready", flush=True)
time.sleep(60)
"""


def ready(job: TrainingJob) -> None:
    until(lambda: "ready" in printed(job))


def caller(folder: Path, script: str, wait: str = "job.wait()") -> subprocess.Popen[bytes]:
    """Another process that starts a job and waits for it."""
    program = f"""
import sys
sys.path[:0] = [{str(HERE)!r}]
from pathlib import Path
from running import start
job = start({script!r}, Path({str(folder)!r}))
{wait}
"""
    return subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )


def attached(name: str = "job-1") -> TrainingJob:
    until(lambda: name in job_names())
    return TrainingJob.attach(name)


# --- a job that ends well ---


def test_a_job_from_start_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = start(
        """
        import os, sys, time
        print("hello", sys.argv[1:])
        print("secret", os.environ["MY_PASSWORD"], "loss: 0.25", flush=True)
        os.makedirs("export/1")
        for name in ("model.keras", "export/1/saved_model.pb", "notes.txt"):
            open(name, "w").write("x")
        os.write(1, ("é" * 200_000 + "\\n").encode())
        for byte in "日本\\n".encode():
            os.write(1, bytes([byte])); time.sleep(0.002)
        os.write(1, b"10%\\r20%\\r30%\\n\\xff\\nno end")
        """,
        tmp_path,
        environment={"MY_PASSWORD": "swordfish"},
        metrics={"loss": "loss: ([0-9.]+)"},
    )
    job.wait()
    assert time.time() - job.describe()["TrainingEndTime"] < 2, "it returns when the supervisor is done"
    shown = capsys.readouterr().out
    assert "[algo-1:rank 0] hello ['--api-token', '***', '--epochs', '3']" in shown
    assert "[algo-1:rank 0] secret *** loss: 0.25" in shown
    for text in ("é" * 200_000, "日本", "10%", "20%", "30%", "\ufffd", "no end"):
        assert f"[algo-1:rank 0] {text}\n" in shown, text[:10]
    assert "job-1  Completed" in shown and "loss 0.25" in shown
    assert job.status == "Completed" and job.secondary_status == "Completed" and job.failure is None
    assert "swordfish" in job.record.log_file("algo-1", "rank 0").read_text(errors="replace"), "the record is whole"

    description = job.describe()
    assert description["TrainingJobStatus"] == "Completed"
    assert description["Environment"] == {"MY_PASSWORD": "***"}
    assert description["HyperParameters"]["api-token"] == "***"
    assert description["HyperParameters"]["epochs"] == "3"
    assert description["ResourceConfig"]["InstanceCount"] == 1
    assert description["FinalMetricDataList"][0]["MetricName"] == "loss"
    json.dumps(description)

    phases = job.phases
    assert phases["import"] is None
    for name in ("launch", "training", "teardown"):
        seconds = phases[name]
        assert seconds is not None and 0 <= seconds < 30, name
    frame = job.metrics()
    assert frame["value"].tolist() == [0.25] and frame["rank"].tolist() == [0]
    assert 0 < frame["elapsed_s"].item() < 30
    assert job.hosts == ["algo-1"]
    result = job.result()
    assert result.final_metrics == {"loss": 0.25} and result.seconds is not None
    assert "Completed" in job._repr_html_() and "Completed" in repr(job)

    # A model that was saved where nobody looks for it.
    assert job.model_data is None
    (warning,) = description["Fleetfit"]["warnings"]
    code = job.record.tree("algo-1").code
    assert f"saved a model ({code}/export/1, {code}/model.keras) to its working folder" in warning
    assert "Save the model to os.environ['SM_MODEL_DIR']" in warning
    assert any("the job has no model" in line.text for line in job.log_lines())

    # A handle of another process says the same.
    other = pickle.loads(pickle.dumps(job))
    assert other.describe() == job.describe() == TrainingJob.attach("job-1").describe()
    assert printed(other) == printed(job)
    other.wait(logs=False)
    other.stop()


def test_nothing_is_lost_at_exit_and_several_may_wait(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = start("for n in range(20_000): print('line', n)", tmp_path, hosts=4)
    others = [threading.Thread(target=job.wait, kwargs={"logs": False}) for _ in range(2)]
    others.append(threading.Thread(target=TrainingJob.attach("job-1").wait, kwargs={"logs": False}))
    for thread in others:
        thread.start()
    job.wait(all=True)
    shown = capsys.readouterr().out.splitlines()
    for rank in range(4):
        tag = f"[algo-{rank + 1}:rank {rank}] line "
        assert [line for line in shown if line.startswith(tag)] == [f"{tag}{n}" for n in range(20_000)]
    for thread in others:
        thread.join(5)
        assert not thread.is_alive()


# --- failures ---


def test_a_failed_job_says_why_keeps_what_it_has_left_and_hides_secrets_by_name_and_by_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = {"WANDB_KEY": "0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c", "COMET_KEY": "sesame-sesame-open"}
    formed = ["hf_" + "abcdefghijklmnopqrstuvwxyzABCDEFGH", "sk-" + "proj-abcdefghijklmnop0123456789"]
    signed = "https://b.example/k?X-Amz-Signature=" + "5d672d79c15b13162d9279b0855cfba6"
    script = """
        import os
        for folder, name in (("SM_MODEL_DIR", "weights"), ("SM_OUTPUT_DATA_DIR", "why.txt")):
            open(os.path.join(os.environ[folder], name), "w").write("half")
        said = " ".join([os.environ["WANDB_KEY"], os.environ["COMET_KEY"], os.environ["NOTES"]])
        print(said, flush=True)
        raise ValueError(said + " of " + repr(dict(WANDB_KEY=os.environ["WANDB_KEY"])))
        """
    notes = " and ".join([*formed, signed])
    job = start(script, tmp_path, environment={**named, "NOTES": notes, "PAD_TOKEN": "[PAD]"})
    with pytest.raises(TrainingJobError) as caught:
        job.wait()
    headline = "ValueError: *** *** *** and *** and https://b.example/k?X-Amz-Signature=*** of {'WANDB_KEY': '***'}"
    assert str(caught.value).splitlines()[-1] == headline
    assert (caught.value.host, caught.value.rank, caught.value.exit_code) == ("algo-1", 0, 1)
    assert caught.value.job is job and job.status == "Failed"
    assert headline in job.describe()["FailureReason"]
    assert headline not in capsys.readouterr().out, "the error tells it, once"
    job.logs()
    assert "ValueError: ***" in capsys.readouterr().out
    with pytest.raises(TrainingJobError):
        TrainingJob.attach("job-1").wait(logs=False)

    # What it has left is packed as SageMaker does.
    for name, member in (("model", "weights"), ("output", "why.txt")):
        with tarfile.open(next((tmp_path / "out").rglob(f"{name}.tar.gz"))) as archive:
            assert archive.getnames() == [member]
    assert job.model_data == str(next((tmp_path / "out").rglob("model.tar.gz")))
    described = job.describe()
    assert [step["Status"] for step in described["SecondaryStatusTransitions"]][-2:] == ["Uploading", "Failed"]
    assert not described["Fleetfit"]["warnings"]

    told = {
        "exception": f"{caught.value} {caught.value.failure}",
        "describe()": json.dumps(described),
        "events": job.record.events_file.read_text(),
        "status": (job.record.path / "status.json").read_text(),
        "result": job.result().to_json() + job.result()._repr_html_(),
    }
    for command in (["describe"], ["logs"], ["list"], ["report", "--json"], ["report", "-o", str(tmp_path / "r.html")]):
        with contextlib.suppress(SystemExit):
            main([command[0], job.name, *command[1:]] if command != ["list"] else command)
        said = capsys.readouterr()
        told[" ".join(command[:2])] = said.out + said.err
    told["report"] = (tmp_path / "r.html").read_text()
    secrets = [*named.values(), *formed, signed.rpartition("=")[2]]
    assert [(face, secret) for face, text in told.items() for secret in secrets if secret in text] == []
    assert "[PAD]" in told["describe()"]
    assert "ValueError: ***" in job._repr_html_()


def test_what_cuts_leave_of_a_secret_is_in_nothing_that_tells_of_it(tmp_path: Path) -> None:
    """The secret stands where each of the cuts falls into it."""
    script = """
        import os
        text = ""
        for place in (0, 270, 690, 980):
            text = text.ljust(place, "-") + os.environ["API_KEY"]
        raise ValueError(text + "+" * 3000)
        """
    secret = "sesame-unlock-marjoram-and-sesame"  # no digits: times and pids have all of them
    job = start(script, tmp_path, environment={"API_KEY": secret})
    with pytest.raises(TrainingJobError) as caught:
        job.wait(logs=False)
    told = [str(caught.value), json.dumps(job.describe()), job.record.events_file.read_text()]
    assert "ValueError: ***---" in told[0]
    assert not [text for text in told for part in ("sesa", "unlo", "marj", "esame") if part in text]


def test_what_cannot_be_started_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    JobRecord.create("job-1").release()
    with pytest.raises(JobExistsError):
        start("print('y')", tmp_path)
    assert not TrainingJob.attach("job-1").record.source_dir.exists()
    monkeypatch.setattr(launching.sys, "executable", str(tmp_path / "gone"))
    with pytest.raises(BackendError, match=r"supervisor of training job 'job-2' cannot be started.*gone"):
        start("print('x')", tmp_path, name="job-2", python=os.path.realpath("/proc/self/exe"))
    assert job_names() == ["job-1"]


@pytest.mark.parametrize("is_attached", [True, False])
def test_a_killed_supervisor_is_noticed(tmp_path: Path, is_attached: bool) -> None:
    job = start(SLEEPER, tmp_path, attached=is_attached)
    ready(job)
    assert job._process is not None
    os.kill(job._process.pid, signal.SIGKILL)
    start_time = time.monotonic()
    with pytest.raises(TrainingJobError, match="supervisor lost"):
        job.wait(logs=False)
    assert time.monotonic() - start_time < 2
    until(lambda: not processes_of("job-1"))


# --- stopping and detaching ---


@pytest.mark.parametrize("is_attached", [True, False])
def test_who_gives_up_waiting_leaves_the_job_running_and_stop_gives_it_time_to_save(
    tmp_path: Path, is_attached: bool
) -> None:
    job = start(
        """
        import signal, sys, time
        def save(*_):
            print("saved", flush=True)
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        print("a" * 64 + "!\\nloss: 1.5\\nready", flush=True)
        time.sleep(60)
        """,
        tmp_path,
        attached=is_attached,
        metrics={"slow": r"^(?:a|aa)+([0-9])$", "loss": "loss: ([0-9.]+)"},
    )
    ready(job)
    with pytest.raises(TimeoutError, match="still InProgress"):
        job.wait(logs=False, timeout=0.3)

    # Another process waits, and is interrupted.
    program = "from estimators.client.training_job import TrainingJob\nTrainingJob.attach('job-1').wait()"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    while b"ready" not in process.stdout.readline():
        pass
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=10)
    assert b"training job job-1 continues" in out and (process.returncode, err) == (-signal.SIGINT, b"")
    assert job.status == "InProgress"

    # The supervisor answers what it is asked.
    assert ipc_client.request(job.record, {"op": "ping"})["ok"] is True
    refused = ipc_client.request(job.record, {"op": "dance"})
    assert refused["ok"] is False and "dance" in refused["error"]

    # A regex that takes for ever neither hides other metrics nor keeps the job from ending.
    until(lambda: [event.data["value"] for event in job.record.events("metric")] == [1.5])
    TrainingJob.attach("job-1").stop(wait=True)
    assert job.status == "Stopped" and "saved" in printed(job)
    assert any("metric 'slow'" in warning for warning in job.describe()["Fleetfit"]["warnings"])
    job.wait(logs=False)  # a stopped job is no error
    job.stop(wait=True)


def test_a_killed_caller_ends_the_job_that_is_tied_to_it_and_no_detached_one(tmp_path: Path) -> None:
    go_on = tmp_path / "go on"
    waiting = (
        f"import os, time\nprint('ready')\nwhile not os.path.exists({str(go_on)!r}): time.sleep(0.01)\nprint('done')"
    )
    detached = f"start({waiting!r}, Path({str(tmp_path)!r}), name='job-2', attached=False)\njob.wait()"
    process = caller(tmp_path, SLEEPER, detached)
    job, other = attached(), attached("job-2")
    ready(job)
    process.kill()
    process.communicate()
    until(lambda: job.status == "Stopped")
    until(lambda: not processes_of("job-1"))
    assert other.record.is_supervised()
    go_on.touch()
    other.wait(logs=False, timeout=60)
    assert other.status == "Completed" and printed(other) == ["ready", "done"]


# --- interrupts ---


@pytest.mark.parametrize("moment", ["claimed", "supervised"])
def test_interrupts_at_any_moment_leave_nothing_running(tmp_path: Path, moment: str) -> None:
    process = caller(tmp_path, SLEEPER)
    job = attached()
    if moment == "supervised":
        until(lambda: any(job.record.events("phase")))
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    until(lambda: "job-1" not in job_names() or job.status in ("Stopped", "Failed"))
    until(lambda: not processes_of("job-1"))


@pytest.mark.parametrize("chatty", [True, False])
def test_a_job_whose_output_nobody_reads_is_stopped(tmp_path: Path, chatty: bool) -> None:
    script = "import time\nprint('ready', flush=True)\n" + (
        "while True: print('x', flush=True); time.sleep(0.01)" if chatty else "time.sleep(60)"
    )
    process = caller(tmp_path, script)
    assert process.stdout is not None
    while b"ready" not in process.stdout.readline():
        pass
    process.stdout.close()  # head has seen enough
    process.wait(20)
    assert process.stderr is not None and b"BrokenPipeError" in process.stderr.read()
    assert attached().status == "Stopped"


def test_signals_that_the_caller_blocks_are_not_blocked_in_the_job(tmp_path: Path) -> None:
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD, signal.SIGTERM])
    try:
        job = start("print('ready', flush=True)", tmp_path)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    job.wait(timeout=30)
    assert job.status == "Completed"
