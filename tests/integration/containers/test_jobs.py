"""Whole jobs in real containers, in the image that users get."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import clusters
import pytest
from containing import WAITING, await_gone, left, plain_job

from container.formats import tfrecord
from estimators import MPI, CollectiveAllReduce, ParameterServer, RunOptions, TensorFlow, TrainingJobError
from estimators.backends.docker import ownership
from estimators.backends.docker.engine import Engine
from estimators.backends.docker.reaper import Duty
from estimators.backends.images.toolkit import IMAGE
from estimators.client import launch
from estimators.inputs import TrainingInput
from estimators.job.errors import BackendError, ConfigurationError, UnsupportedError

pytestmark = pytest.mark.timeout(1500)  # the first one has the images made

ENTRYPOINTS = Path(__file__).parents[3] / "entrypoints"

HOROVOD = """
import os, socket
import horovod.tensorflow as hvd
import tensorflow as tf
import aid
from container.pipe_dataset import PipeModeDataset, native
hvd.init()
summed = hvd.allreduce(tf.constant([float(hvd.rank() + 1)]), op=hvd.Sum)
records = [record.decode() for record in PipeModeDataset("train", record_format="TFRecord").as_numpy_iterator()]
aid.report(size=hvd.size(), local=hvd.local_size(), sum=float(summed[0]), name=socket.gethostname(),
           host=os.environ["SM_CURRENT_HOST"], cpus=os.environ["SM_NUM_CPUS"], records=records,
           compiled=native.library() is not None)
"""


@pytest.mark.horovod
def test_four_ranks_of_horovod_on_two_host_names(make: clusters.Make, engine: Engine, tmp_path: Path) -> None:
    data = tmp_path / "data.tfrecord"
    data.write_bytes(tfrecord.encode(b"a") + tfrecord.encode(b"b"))
    inputs = {"train": TrainingInput(str(data), input_mode="Pipe")}
    estimator = make(HOROVOD, hosts=2, processes=2)
    planned = str(estimator.plan(inputs))
    assert "docker network create fleetfit-" in planned and planned.count("docker run --name fleetfit-") == 2
    assert "mpirun --host algo-1:2,algo-2:2 -np 4" in planned
    job = clusters.fit(estimator, inputs, logs=False)
    said = clusters.reports(job)
    assert sorted(said) == [0, 1, 2, 3]
    assert {rank: one["name"] for rank, one in said.items()} == {0: "algo-1", 1: "algo-1", 2: "algo-2", 3: "algo-2"}
    assert all(one["size"] == 4 and one["local"] == 2 and one["sum"] == 10.0 for one in said.values())
    assert all(one["host"] == one["name"] == one["@host"] for one in said.values())
    # TensorFlow reads the FIFOs by itself, with the reader that was compiled for the image.
    assert all(one["records"] == ["a", "b"] and one["compiled"] for one in said.values())
    await_gone(engine, job.name)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("strategy", "hosts"),
    [
        (ParameterServer(), 2),
        (CollectiveAllReduce(), 2),
        pytest.param(CollectiveAllReduce(), 3, marks=pytest.mark.soak),
        pytest.param(ParameterServer(), 3, marks=pytest.mark.soak),
        pytest.param(MPI(processes_per_host=2), 2, marks=pytest.mark.soak),
    ],
    ids=["parameter_server-2", "collective_all_reduce-2", "collective_all_reduce-3", "parameter_server-3", "mpi-2"],
)
def test_the_same_script_trains_with_every_strategy(
    strategy: object, hosts: int, prepared_digits: Path, image: str, engine: Engine, tmp_path: Path
) -> None:
    job = clusters.fit(
        TensorFlow(
            entry_point="train.py",
            source_dir=str(ENTRYPOINTS),
            instance_count=hosts,
            instance_type="local",
            distribution=strategy,
            hyperparameters={"epochs": 3, "batch-size": 60},
            output_path=str(tmp_path / "out"),
        ),
        {"train": str(prepared_digits / "train"), "validation": str(prepared_digits / "validation")},
        logs=False,
    )
    metrics = job.metrics()
    accuracy = metrics[metrics.name == "val_accuracy"].value
    assert len(accuracy) and accuracy.iloc[-1] > 0.8
    assert job.model_data is not None
    with tarfile.open(job.model_data) as archive:
        assert any(name.endswith("saved_model.pb") for name in archive.getnames())
    assert list(Path(job.checkpoints).glob("checkpoint-*"))


@pytest.mark.landing
def test_channels_outputs_and_settings(make: clusters.Make, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number in range(4):
        (data / f"part-{number}").write_text(str(number) * 10)
    job = clusters.fit(
        make(
            """
            import json, os, pathlib, sys
            import aid
            base = pathlib.Path("/opt/ml")
            whole = base / "input/data/whole"
            read = sorted(path.read_text() for path in whole.iterdir())
            (whole / "new").touch()  # the folder is the host's own
            aid.report(
                argv=sys.argv[1:], variable=os.environ["SM_CHANNEL_WHOLE"], whole=read,
                dealt=sorted(path.read_text() for path in (base / "input/data/dealt").iterdir()),
                asked=os.environ["ASKED"], cwd=os.getcwd(), shm=os.statvfs("/dev/shm").f_blocks * 4096 >> 20,
                piped=(base / "input/data/piped_0").read_bytes().decode(), cpus=os.environ["SM_NUM_CPUS"],
            )
            host = os.environ["SM_CURRENT_HOST"]
            (base / "model" / host).write_text("weights")
            (base / "output/data" / f"notes-{host}").write_text("text")
            (base / "checkpoints" / f"saved-{host}").write_text("state")
            os.chmod(base / "model" / host, 0o600)
            print("loss=0.25")
            """,
            hosts=2,
            environment={"ASKED": "a b'\"$HOME"},
            options={"backend_options": {"cpus": 1}},
            hyperparameters={"text": 'it\'s "so" $HOME\n', "rate": 0.5},
            output_path=str(tmp_path / "out"),
            metric_definitions=[{"Name": "loss", "Regex": r"loss=(\S+)"}],
        ),
        {
            "whole": str(data),
            "dealt": TrainingInput(str(data), distribution="ShardedByS3Key"),
            "piped": TrainingInput(str(data), input_mode="Pipe"),
        },
        logs=False,
    )
    said = clusters.reports(job)
    everything = [str(number) * 10 for number in range(4)]
    for one in said.values():
        assert one["argv"] == ["--rate", "0.5", "--text", 'it\'s "so" $HOME\n']
        assert one["whole"] == everything and one["variable"] == "/opt/ml/input/data/whole"
        assert one["asked"] == "a b'\"$HOME" and one["cwd"] == "/opt/ml/code" and one["shm"] == 2048
        assert one["cpus"] == "1"
        assert one["piped"].replace("\n", "") == "".join(everything)
    assert sorted(said[0]["dealt"] + said[1]["dealt"]) == everything and len(said[0]["dealt"]) == 2
    with tarfile.open(str(job.model_data)) as archive:
        assert sorted(name for name in archive.getnames() if "algo" in name) == ["algo-1", "algo-2"]
    assert sorted(path.name for path in Path(job.checkpoints).iterdir()) == ["saved-algo-1", "saved-algo-2"]
    assert set(job.metrics().name) >= {"loss"}
    assert sorted(os.listdir(data)) == [f"part-{number}" for number in range(4)]


def test_a_rank_that_raises_is_named_with_its_traceback(make: clusters.Make, engine: Engine) -> None:
    with pytest.raises(TrainingJobError) as caught:
        make.run(
            """
            import time
            import aid
            if aid.RANK == 1:
                raise ValueError("no data")
            time.sleep(60)
            """,
            hosts=2,
            name="raises",
        )
    error = caught.value
    assert (error.host, error.exit_code) == ("algo-2", 1)
    assert str(error).endswith("ValueError: no data")
    for host in ("algo-1", "algo-2"):
        assert "no data" in (error.job.record.tree(host).output / "failure").read_text()  # type: ignore[union-attr]
    await_gone(engine, "raises")


def test_a_job_that_is_stopped_has_its_time_to_save(make: clusters.Make, engine: Engine) -> None:
    job = make.start(WAITING, hosts=2, ready=2)
    attached = TensorFlow.attach(job.name).latest_training_job
    assert attached is not None and attached.status == "InProgress"
    attached.stop()
    assert clusters.await_terminal(job) == "Stopped"
    make.marked("saved-algo-1")
    make.marked("saved-algo-2")
    await_gone(engine, job.name)


@pytest.mark.landing
def test_sigkill_of_the_supervisor_leaves_nothing(make: clusters.Make, engine: Engine) -> None:
    job = make.start(WAITING, hosts=2, ready=2)
    assert len(left(engine, job.name)) == 3, "two containers and a network"
    clusters.supervisor(job).kill()
    await_gone(engine, job.name)
    assert clusters.await_terminal(job) == "Failed"


def test_sigkill_of_an_attached_caller_leaves_nothing(make: clusters.Make, engine: Engine, tmp_path: Path) -> None:
    make(WAITING)
    caller = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"""
from estimators import RunOptions, TensorFlow
TensorFlow(entry_point="train.py", source_dir={str(tmp_path / "code-1")!r}, instance_count=2, instance_type="local",
    model_dir=False, environment={{"MARKS": "/marks"}},
    run_options=RunOptions(backend_options={{"mounts": {{{str(make.marks)!r}: "/marks"}}}})).fit(job_name="attached")
""",
        ]
    )
    make.await_ready(2)
    caller.send_signal(signal.SIGKILL)
    caller.wait()
    await_gone(engine, "attached")


@pytest.mark.parametrize(
    ("signal", "told"),
    [
        ("SIGKILL", "killed from outside (SIGKILL)"),
        ("SIGTERM", "algo-2: the host's training process was stopped by another program (SIGTERM)"),  # `docker stop`
    ],
)
def test_a_container_that_is_killed_from_outside_is_the_reason(
    signal: str, told: str, make: clusters.Make, engine: Engine
) -> None:
    job = make.start(WAITING, hosts=2, ready=2)
    engine.kill(f"fleetfit-{job.name}-algo-2", signal)
    assert clusters.await_terminal(job) == "Failed"
    reason = job.describe()["FailureReason"]
    assert "algo-2" in reason and told in reason
    await_gone(engine, job.name)


#: What the image of a host that never comes up runs first.
_SILENT = """\
FROM {image}
RUN mv /usr/local/bin/train /usr/local/bin/train-aloud \\
 && printf '#!/bin/sh\\n[ "$(hostname)" = algo-2 ] && exec sleep 300\\nexec train-aloud\\n' > /usr/local/bin/train \\
 && chmod 755 /usr/local/bin/train
"""


def test_a_host_that_never_comes_up_is_named(make: clusters.Make, engine: Engine, image: str, tmp_path: Path) -> None:
    (tmp_path / "silent").mkdir()
    (tmp_path / "silent" / "Dockerfile").write_text(_SILENT.format(image=image))
    engine.build(tmp_path / "silent", "fleetfit-test-silent", {})
    settings = {"hosts": 2, "processes": 1, "options": {"start_timeout": 2.0}}
    with pytest.raises(TrainingJobError, match="algo-2 did not answer within 2 s") as caught:
        make.run("", **settings, image_uri="fleetfit-test-silent", name="silent")
    assert caught.value.host == "algo-2" and caught.value.failure.cause.value == "timeout"
    await_gone(engine, "silent")


def test_out_of_memory_is_said_as_that(make: clusters.Make) -> None:
    with pytest.raises(TrainingJobError, match="ran out of memory") as caught:
        make.run(
            "held = [bytearray(b'x' * (16 << 20)) for _ in range(100)]",
            options={"backend_options": {"memory": "256m"}},
        )
    assert "backend_options={'memory'" in str(caught.value)


def test_credentials_are_there_and_nowhere_to_be_seen_and_the_code_is_mounted(
    make: clusters.Make, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hushhush")
    job = make.start(
        """
        import boto3
        import aid
        aid.mark("key", boto3.Session().get_credentials().secret_key[::-1] == "hsuhhsuh")
        aid.mark("ready-0")
        aid.wait_for("go")
        """,
        ready=1,
    )
    assert make.marked("key") == "True"
    container = engine.inspect(f"fleetfit-{job.name}-algo-1")
    assert container is not None
    shown = json.dumps(container)
    make.mark("go")
    assert clusters.await_terminal(job) == "Completed"
    assert "hushhush" not in shown
    # A script that has changed needs no other image: the job's own copy of it is mounted.
    code = next(mount for mount in container["Mounts"] if mount["Destination"] == "/opt/ml/code")
    assert (code["Type"], code["Source"]) == ("bind", str(job.record.tree("algo-1").base / "code"))
    assert (Path(code["Source"]) / "train.py").read_bytes() == (make.folder / "code-1" / "train.py").read_bytes()
    assert container["Image"] == engine.image(IMAGE).id
    for path in job.record.path.rglob("*"):
        assert not path.is_file() or b"hushhush" not in path.read_bytes(), path


@pytest.mark.leaves("folders")
def test_what_a_crashed_machine_left_is_cleaned(make: clusters.Make, engine: Engine) -> None:
    from estimators.cli import clean

    job = make.start(WAITING, ready=1)
    assert not [item for item in clean.left_by_backends() if job.name in item.why], "it runs"
    supervisor = clusters.supervisor(job)
    reaper = next(one for one in clusters.below(supervisor.pid) if "estimators.backends.docker.reaper" in one.argv)
    assert reaper.pid in launch._leftovers(job.record.path), "a job is not resumed before its remover is done"
    supervisor.kill(signal.SIGSTOP)  # it would start another reaper
    reaper.kill()
    supervisor.kill()
    clusters.until(lambda: not job.record.is_supervised())
    items = [item for item in clean.left_by_backends() if job.name in item.why]
    assert {item.kind for item in items} <= {clean.ItemKind.CONTAINER, clean.ItemKind.NETWORK} and items
    assert all(removal.error is None for removal in clean.remove(items))
    assert not left(engine, job.name)


def test_a_reaper_that_was_killed_is_replaced(make: clusters.Make, engine: Engine) -> None:
    job = make.start(WAITING, ready=1)
    supervisor = clusters.supervisor(job)

    def found() -> list[clusters.Process]:
        return [one for one in clusters.below(supervisor.pid) if "estimators.backends.docker.reaper" in one.argv]

    [first] = found()
    first.kill()
    clusters.until(lambda: [one for one in found() if one.pid != first.pid])
    supervisor.kill()
    await_gone(engine, job.name)


# --- images of others ---


def test_an_image_of_others_trains_and_its_hosts_keep_their_names(plain: str, engine: Engine, tmp_path: Path) -> None:
    """SageMaker's own toolkit waits for all names; a host that is late would wait for those that are done."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a").write_text("abc")
    asked = plain_job(plain, output_path=str(tmp_path / "out"), hyperparameters={"writes": 1, "late": 1})
    job = clusters.fit(asked, str(tmp_path / "data"), wait=False)
    clusters.until(lambda: clusters.all_text(job).count("plain image on") == 2)
    clusters.until(lambda: not engine.inspect(f"fleetfit-{job.name}-algo-1")["State"]["Running"])  # type: ignore[index]
    (job.record.tree("algo-2").output / "go").touch()
    assert clusters.await_terminal(job) == "Completed"
    text = clusters.all_text(job)
    assert "plain image on algo-1, training" in text and "plain image on algo-2, training" in text
    assert "/opt/ml/input/data/training: 3 bytes" in text
    assert re.search(r"algo-1 is [\d.]+ +algo-1, algo-2 is [\d.]+ +algo-2", text), "the names of those that are done"
    with tarfile.open(str(job.model_data)) as archive:
        assert {"weights", "who"} <= set(archive.getnames())


def test_an_image_of_others_that_fails(plain: str, engine: Engine) -> None:
    with pytest.raises(TrainingJobError) as caught:
        clusters.fit(plain_job(plain, hyperparameters={"fails": 1}), logs=False, job_name="plain-fails")
    assert caught.value.exit_code == 3 and "exited with code 3" in str(caught.value)
    assert "it fails as it was told to" in str(caught.value)
    await_gone(engine, "plain-fails")


def test_an_image_of_others_that_is_stopped(plain: str, engine: Engine) -> None:
    job = clusters.fit(plain_job(plain, hyperparameters={"sleeps": 1}), wait=False)
    clusters.until(lambda: clusters.all_text(job).count("sleeping") == 2)
    found, _ = engine.leftovers({"fleetfit.job": job.name})
    volumes = {mount["Name"] for item in found for mount in item["Mounts"] if mount["Type"] == "volume"}
    assert len(volumes) == 2, "the image's VOLUME, of each container"
    job.stop(grace=0.5)
    assert clusters.await_terminal(job) == "Stopped"
    await_gone(engine, job.name)

    def names() -> set[str]:
        found = engine.ask("list volumes", "GET", "/volumes")
        return {volume["Name"] for volume in found["Volumes"] or ()}

    clusters.until(lambda: not volumes & names())


# --- what is refused, and why ---


def test_a_job_that_cannot_run_is_refused_before_anything_is_claimed(
    plain: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = RunOptions(backend_options={"memroy": 1})
    refused: dict[str, tuple[TensorFlow, type[Exception]]] = {
        "image 'no-such:1' is not on this engine: run `docker pull no-such:1`": (plain_job("no-such:1"), BackendError),
        "'local_gpu': ": (plain_job(plain, instance_type="local_gpu"), UnsupportedError),
        "backend option": (plain_job(plain, run_options=options), ConfigurationError),
        "needs fleetfit's toolkit": (plain_job(plain, keep_alive_period_in_seconds=5), UnsupportedError),
    }
    for words, (estimator, error) in refused.items():
        with pytest.raises(error, match=words):
            clusters.fit(estimator, logs=False)
    for address, words in {
        "unix:///no/such.sock": "there is no container engine at unix:///no/such.sock",
        "tcp://127.0.0.1:9": "is not running",
    }.items():
        monkeypatch.setenv("DOCKER_HOST", address)
        with pytest.raises(BackendError, match=words):
            clusters.fit(plain_job(plain), logs=False)
    assert not list(home.glob("jobs/*"))


def test_the_reason_of_an_engine_that_refuses_is_the_jobs(base_image: str, engine: Engine) -> None:
    with pytest.raises(TrainingJobError, match=r"has no executable program 'train'.*docker run IMAGE train"):
        clusters.fit(plain_job(base_image), logs=False, job_name="no-program")
    await_gone(engine, "no-program")
    engine.create_network("fleetfit-taken", {})
    try:
        with pytest.raises(TrainingJobError, match=r"fleetfit-taken already exists.* `fleetfit clean`"):
            clusters.fit(plain_job(base_image), logs=False, job_name="taken")
        await_gone(engine, "taken")
    finally:
        engine.remove_network("fleetfit-taken")


def test_files_of_containers_are_given_back(plain: str, engine: Engine, tmp_path: Path) -> None:
    for name, owner in (("tree", 777), ("shared", 0), ("shared", 777)):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / f"of-{owner}").touch()
        os.chown(tmp_path / name / f"of-{owner}", owner, owner)
    trees, shared = (str(tmp_path / "tree"), str(tmp_path / "absent")), (str(tmp_path / "shared"),)
    duty = Duty(label="fleetfit.record", value="/none", image=plain, trees=trees, shared=shared)
    for plan in ownership.plans(duty, "", 12345, 23456):
        engine.run(plan)
    owners = {str(path.relative_to(tmp_path)): path.stat().st_uid for path in tmp_path.glob("*/of-*")}
    assert owners == {"tree/of-777": 12345, "shared/of-0": 12345, "shared/of-777": 777}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_disk_that_is_full_is_the_reason(make: clusters.Make, engine: Engine, home: Path) -> None:
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(home)], check=True)
    try:
        with pytest.raises(TrainingJobError, match=r"No space left on device\. Free some space \(`fleetfit clean"):
            make.run("open('/opt/ml/model/x', 'wb').write(b'x' * 10_000_000)", name="full")
        await_gone(engine, "full")
    finally:
        # The supervisor tidies up after the job's end.
        clusters.until(lambda: subprocess.run(["umount", "-q", str(home)], check=False).returncode == 0)
