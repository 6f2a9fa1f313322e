"""Images, users and launchers of others: the official toolkit, an image that is not root's, sshd."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import clusters
import official_image
import pytest
from containing import await_gone

from estimators import Estimator, TensorFlow, TrainingJobError
from estimators.backends.docker.engine import Engine
from estimators.inputs import TrainingInput

pytestmark = pytest.mark.timeout(1500)  # the first one has the images made


# --- the official toolkit ---

OFFICIAL = """
import argparse, os
import helper

parser = argparse.ArgumentParser()
parser.add_argument("--text")
parser.add_argument("--fails", type=int, default=0)
given = parser.parse_args()
host, channel = os.environ["SM_CURRENT_HOST"], os.environ["SM_CHANNEL_TRAINING"]
print("of", os.environ["SM_HOSTS"], "reads", sorted(os.listdir(channel)), "is told", given.text)

def step():
    if given.fails:
        raise ValueError("no data in it")

step()
with open(os.path.join(os.environ["SM_MODEL_DIR"], f"weights-{host}"), "w") as file:
    file.write(host)
"""


def official_job(image: str, folder: Path, **hyperparameters: object) -> TensorFlow:
    code = folder / "code"
    code.mkdir(exist_ok=True)
    (code / "train.py").write_text(OFFICIAL)
    (code / "helper.py").touch()
    return TensorFlow(
        entry_point="train.py",
        source_dir=str(code),
        image_uri=image,
        instance_type="local",
        instance_count=2,
        model_dir=False,
        hyperparameters={"text": 'it\'s "so" $HOME', **hyperparameters},
        output_path=str(folder / "out"),
    )


def test_the_official_toolkit_trains_and_fails_as_ours_does(engine: Engine, base_image: str, tmp_path: Path) -> None:
    image = official_image.build(engine, base_image)
    data = tmp_path / "data"
    data.mkdir()
    (data / "a").touch()
    job = clusters.fit(official_job(image, tmp_path), str(data), logs=False)
    assert job.status == "Completed"
    said = clusters.all_text(job)
    assert said.count("""of ["algo-1","algo-2"] reads ['a'] is told it's "so" $HOME""") == 2
    assert "Reporting training SUCCESS" in said, "it is the official toolkit that ran"
    for host in job.record.tree("algo-1"), job.record.tree("algo-2"):
        assert next(host.model.iterdir()).read_text() == next(host.model.iterdir()).name.removeprefix("weights-")

    with pytest.raises(TrainingJobError) as caught:
        clusters.fit(official_job(image, tmp_path, fails=1), str(data), logs=False, job_name="official-fails")
    error = caught.value
    assert error.exit_code == 1 and "ValueError: no data in it" in str(error).splitlines()[0]
    assert 'File "/opt/ml/code/train.py", line 16, in <module>' in str(error)
    assert str(error).endswith("\nValueError: no data in it"), "the user's traceback comes last, without the toolkit's"
    await_gone(engine, "official-fails")


# --- a program of one's own in our image ---


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("python -c 'raise ValueError(\"no data in it\")'", "ValueError: no data in it"),
        ("echo 'the disk is wet' > /opt/ml/output/failure; exit 3", "exited with code 3: the disk is wet"),
    ],
)
def test_what_runs_decides_and_not_the_image(image: str, tmp_path: Path, program: str, said: str) -> None:
    """The official SDK 3.x starts all of its jobs so. It changes its scripts' modes where they lie, in a channel."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "x.sh").write_text(f"#!/bin/sh\n{program}\n")
    (code / "x.sh").chmod(0o644)
    place = "/opt/ml/input/data/code"
    job = Estimator(
        image_uri=image,
        role="none",
        instance_count=1,
        instance_type="local",
        container_entry_point=["/bin/sh", "-c"],
        container_arguments=[f"cd {place} && chmod +x x.sh && ./x.sh"],
    )
    with pytest.raises(TrainingJobError) as caught:
        clusters.fit(job, {"code": str(code)}, logs=False)
    assert said in str(caught.value).splitlines()[0]
    assert (code / "x.sh").stat().st_mode & 0o777 == 0o644


# --- an image of another user ---

WRITING = """
import os, time
import aid

print("a line before the data", flush=True)
folders = ["/opt/ml/model", "/opt/ml/output/data", "/opt/ml/checkpoints"]
for folder in folders:
    os.mkdir(f"{folder}/own", 0o700)
    with open(f"{folder}/own/file", "w") as file:
        os.fchmod(file.fileno(), 0o600)
aid.report(uid=os.getuid(), read=[open(f"/opt/ml/input/data/piped_{epoch}").read().split() for epoch in (0, 1)])
aid.mark("ready-0")
if os.environ["WAITS"] == "yes":
    time.sleep(300)
"""


def foreign_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.lstat().st_uid != os.geteuid()]


def test_an_image_of_another_user_reads_pipes_and_its_files_become_the_callers(
    make: clusters.Make, engine: Engine, user_image: str, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a").write_text("x\ny\n")
    make.marks.chmod(0o777)
    settings = {"image_uri": user_image, "environment": {"WAITS": "no"}}
    inputs = {"piped": TrainingInput(str(data), input_mode="Pipe")}
    old = os.umask(0o077)
    try:
        job = clusters.fit(make(WRITING, **settings), inputs, logs=False)
        assert clusters.reports(job)[0] | {"@host": ""} == {"uid": 4321, "read": [["x", "y"]] * 2, "@host": ""}
        assert (job.record.tree("algo-1").model / "own" / "file").exists()
        assert not foreign_files(job.record.path)
        # After SIGKILL of the supervisor nobody but the reaper is left to do it.
        make.clear()
        settings["environment"] = {"WAITS": "yes"}
        job = clusters.fit(make(WRITING, **settings), inputs, wait=False)
    finally:
        os.umask(old)
    make.await_ready(1, job)
    assert foreign_files(job.record.path)
    clusters.supervisor(job).kill()
    await_gone(engine, job.name)
    clusters.until(lambda: not foreign_files(job.record.path))


# --- sshd for launchers of others ---

LOGGING_IN = """
import os, stat, subprocess
import aid

subprocess.Popen(["/usr/sbin/sshd", "-D"], stdout=subprocess.DEVNULL)
aid.mark(f"ready-{aid.RANK}")
aid.wait_for("ready-0")
aid.wait_for("ready-1")
other = "algo-2" if aid.HOST == "algo-1" else "algo-1"
words = ["ssh", "-o", "BatchMode=yes", other, "hostname; command -v orted; echo $OPAL_PREFIX"]
for _ in range(100):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode == 0 or "refused" not in done.stderr:
        break
secret = ("/root/.ssh/id_ed25519", "/etc/ssh/ssh_host_ed25519_key")
aid.report(said=done.stdout.split(), error=done.stderr, modes=[oct(os.stat(path).st_mode & 0o777) for path in secret])
aid.mark(f"done-{aid.RANK}")
aid.wait_for("done-0")
aid.wait_for("done-1")
"""


def test_sshd_gets_keys_of_the_job(make: clusters.Make, home: Path) -> None:
    job = make.run(LOGGING_IN, hosts=2, options={"backend_options": {"sshd": True}})
    for rank, other in ((0, "algo-2"), (1, "algo-1")):
        said = clusters.reports(job)[rank]
        assert said["said"] == [other, "/opt/fleetfit/bin/orted", "/opt/fleetfit"], said["error"]
        assert said["modes"] == ["0o600", "0o600"]
    kept = [path for path in home.rglob("*") if path.is_file() and b"OPENSSH PRIVATE KEY" in path.read_bytes()]
    assert not kept, "no key was ever on this machine's disk but in the containers"


# --- a caller who is not root ---

CALLER = """
import os, subprocess, sys
sys.path[:0] = {path!r}
from estimators import RunOptions, TensorFlow
from estimators.inputs import TrainingInput
job = TensorFlow(entry_point="train.py", source_dir="code", instance_type="local", model_dir=False,
    environment={{"MARKS": "/marks", "WAITS": "no"}},
    run_options=RunOptions(backend_options={{"mounts": {{os.path.abspath("marks"): "/marks"}}}}),
).fit({{"piped": TrainingInput("data", input_mode="Pipe")}}, logs=False)
assert job.status == "Completed" and job.model_data, job.describe()
found = subprocess.run(["find", "home", "!", "-uid", str(os.getuid())], capture_output=True, text=True)
assert (found.stdout, found.stderr) == ("", ""), found
from estimators.client import launch
for process in launch._supervisors:
    process.wait()  # it writes into the record until then, and the folder is about to be removed
print("it is all mine")
"""


@pytest.fixture
def theirs() -> Iterator[Path]:
    """A folder that is not below root's own."""
    with tempfile.TemporaryDirectory(prefix="fleetfit-test-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_caller_who_is_not_root_owns_what_the_containers_wrote(image: str, theirs: Path) -> None:
    for name in ("code", "data", "marks", "home"):
        (theirs / name).mkdir()
    (theirs / "code" / "train.py").write_text(WRITING)
    (theirs / "code" / "aid.py").write_text(clusters.AID)
    (theirs / "data" / "a").write_text("x\n")
    (theirs / "data" / "a").chmod(0o600)
    subprocess.run(["chown", "-R", "12345:12345", str(theirs)], check=True)
    group = os.stat("/var/run/docker.sock").st_gid
    # Python itself may be root's, below /root: this user may read everything, and write what is theirs.
    allowed = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    script = CALLER.format(path=[path for path in sys.path if path])
    done = subprocess.run(
        ["setpriv", "--reuid=12345", "--regid=12345", f"--groups={group}", *allowed, sys.executable, "-c", script],
        cwd=theirs,
        env={"HOME": str(theirs), "PATH": os.environ["PATH"], "FLEETFIT_HOME": str(theirs / "home")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "it is all mine" in done.stdout, done.stderr
