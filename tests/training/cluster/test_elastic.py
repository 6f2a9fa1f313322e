"""Elastic Horovod for real: hosts come, go and die while it trains, and no record is lost or counts twice."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import signal
import time
from pathlib import Path

import clusters
import pytest
from elastic_jobs import (
    ENDLESS,
    ENVIRONMENT,
    FAILING,
    HOROVODS_OWN,
    LEDGER,
    LOSING,
    MEETING,
    check,
    sizes,
    trained,
    until_size,
    worker_report,
)

from estimators import ElasticHorovod, FailurePolicy, TrainingJob
from estimators.client import ipc_client
from estimators.client.launch import resume
from estimators.faults import Interrupt, RemoveHost, SpotMarket
from estimators.inputs import ShuffleConfig, TrainingInput
from estimators.job.errors import ConfigurationError, TrainingJobError, UnsupportedError
from estimators.records.record import JobRecord


def manifests(job: TrainingJob) -> list[Path]:
    """The files that say what is in the job's checkpoints."""
    return list((job.record.path / "checkpoints").glob("checkpoint-*/manifest.json"))


def kinds(job: TrainingJob) -> list[str]:
    return [event.kind for event in job.record.events()]


@pytest.mark.landing
@pytest.mark.horovod
def test_each_record_counts_once_whatever_dies_joins_or_leaves(make: clusters.Make) -> None:
    job = make.start(
        LEDGER,
        hosts=2,
        distribution=ElasticHorovod(max_hosts=3, cooldown=(0.1, 1.0)),
        environment=ENVIRONMENT,
    )
    until_size(job, 2)
    trained(make, job, 2)
    with pytest.raises(ConfigurationError, match=r"exceed max_hosts=3"):
        job.add_hosts(2)
    with pytest.raises(ConfigurationError, match=r"'algo-9' is not a host of the job; its hosts: algo-1, algo-2"):
        job.remove_host("algo-9")
    # The first rank, which has told the others what to do so far, is killed; it comes back as the last.
    ipc_client.request(job.record, {"op": "kill_rank", "rank": 0})
    until_size(job, 2, 1, 2)
    clusters.until(lambda: [host["ranks"] for host in job.membership] == [[1], [0]])
    assert "host_excluded" in kinds(job)
    trained(make, job, 2)
    assert job.add_hosts(1) == ["algo-3"]
    until_size(job, 2, 1, 2, 3)
    trained(make, job, 3)
    job.remove_host("algo-2")
    until_size(job, 2, 1, 2, 3, 2)
    clusters.until(lambda: job.hosts == ["algo-1", "algo-3"])
    trained(make, job, 2)
    snapshot = clusters.Snapshot(job)
    make.mark("enough")
    job.wait(logs=False, timeout=120)
    assert job.status == "Completed"
    snapshot.await_end()
    assert snapshot.files_left() == []
    said = worker_report(job)
    epochs = max(int(path.name.partition("-")[2]) for path in make.marks.glob("epoch-*")) + 1
    assert (said["least"], said["most"]) == (epochs, epochs)
    assert said["size"] == 2
    restored = [event.data for event in job.record.events() if event.kind == "restored"]
    assert restored and all(0 <= data["steps_lost"] <= 3 for data in restored)
    assert not any(event.kind == "failure" for event in job.record.events())
    # What happened is in the log as in the record, and plots mark it.
    log = b"".join(line.data for line in job.log_lines()).decode()
    for told in (
        "is committed; commits are 3 steps apart",
        "back to the last commit",
        "1 -> 2 workers",
        "2 -> 3 workers",
    ):
        assert told in log
    happened = {moment.kind for moment in job.result().moments}
    assert happened == {"joined", "left", "resized", "excluded", "committed", "restored"}


@pytest.mark.horovod
def test_in_pipe_mode_too_each_record_counts_once(make: clusters.Make) -> None:
    data = make.folder / "data"
    data.mkdir()
    for part in range(3):
        (data / f"part-{part}").write_text("".join(f"{number}\n" for number in range(part, 600, 3)))
    rule = make.folder / "rule.py"
    rule.write_text("import math\nclass Never:\n    def failed(self, host, now):\n        return math.inf\n")
    job = make.start(
        LEDGER,
        hosts=2,
        inputs={"train": TrainingInput(str(data), input_mode="Pipe", shuffle_config=ShuffleConfig(7))},
        distribution=ElasticHorovod(max_hosts=3, exclusion=f"{rule}:Never"),  # the killed one is not waited for
        environment=ENVIRONMENT,
    )
    until_size(job, 2)
    trained(make, job, 2)
    job.add_hosts(1)
    until_size(job, 2, 3)
    trained(make, job, 3)
    ipc_client.request(job.record, {"op": "kill_rank", "rank": 0})
    until_size(job, 2, 3, 2)
    job.remove_host("algo-2")
    until_size(job, 2, 3, 2, 1)
    trained(make, job, 1)
    make.mark("enough")
    job.wait(logs=False, timeout=120)
    assert job.status == "Completed"
    assert "no new worker starts on this host any more" in clusters.all_text(job)
    said = worker_report(job)
    epochs = max(int(path.name.partition("-")[2]) for path in make.marks.glob("epoch-*")) + 1
    assert (said["least"], said["most"]) == (epochs, epochs)
    restored = [event.data for event in job.record.events() if event.kind == "restored"]
    assert restored and all(0 <= data["steps_lost"] <= 3 for data in restored)


@pytest.mark.horovod
def test_horovods_own_elastic_scripts_go_on_from_their_commit_when_a_host_is_lost(make: clusters.Make) -> None:
    hosts_file = make.folder / "hosts"
    hosts_file.write_text("one\ntwo:1\n")
    options = {"max_hosts": 2, "cooldown": [0.1, 1.0], "discovery": str(hosts_file)}
    job = make.start(
        HOROVODS_OWN, hosts=2, distribution={"elastic_horovod": {"enabled": True, **options}}, environment=ENVIRONMENT
    )
    until_size(job, 2)
    clusters.until((make.marks / "holds").exists, check=lambda: check(job))
    snapshot = clusters.Snapshot(job)
    toolkit = snapshot.find("toolkit", "algo-1")
    os.kill(toolkit.pid, signal.SIGKILL)
    until_size(job, 2, 1, 2)  # the host is replaced by another, with a name of its own
    clusters.until(lambda: job.hosts == ["algo-2", "algo-3"])
    hosts_file.write_text("two:1\n")  # "one" was algo-1
    until_size(job, 2, 1, 2, 1)
    make.mark("enough")
    job.wait(logs=False, timeout=120)
    assert job.status == "Completed"
    lines = [line.text for line in job.log_lines() if line.text.startswith("from step ")]
    starts = [tuple(int(number) for number in re.findall(r"\d+", line)) for line in lines]
    assert starts[:3] == [(0, 0, 0, 2), (0, 0, 0, 2), (25, 4, 1, 1)]  # of step 28 all had the state
    assert starts[3] == starts[4]  # the one that came has all that the other one had
    assert [start[3] for start in starts[3:]] == [2, 2, 1]
    # The callbacks have counted what was trained since the start before.
    for (before, _, epoch_before, _), (step, batch, epoch, _) in itertools.pairwise(dict.fromkeys(starts)):
        assert step == before + 20 * (epoch - epoch_before) + (batch + 1 if batch else 0) > before
    said = worker_report(job)
    assert said["trained"] == said["weight"] > starts[-1][0] and said["batch"] == 0


DECIDING = """
import aid
from container import distributed
cluster = distributed.init()
import tensorflow as tf, tf_keras as keras
tf.config.threading.set_inter_op_parallelism_threads(2)  # TensorFlow's devices have not begun yet

class Decide(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == cluster.rank:  # as after a plateau, which a rank that came late sees at another time
            self.model.optimizer.learning_rate = 0.5 * float(self.model.optimizer.learning_rate)

model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
model.compile(optimizer=cluster.optimizer(keras.optimizers.Adam(0.5)), loss="mse")
cluster.fit(
    model, lambda: tf.data.Dataset.range(64), parse=lambda number: (tf.cast(number, tf.float32)[None], 1.0),
    global_batch_size=4, epochs=4, callbacks=[Decide()], verbose=0,
)
print("the rate is", float(model.optimizer.learning_rate))
"""


@pytest.mark.horovod
def test_what_callbacks_decide_is_taken_from_rank_0(make: clusters.Make) -> None:
    job = make.start(DECIDING, hosts=2, distribution=ElasticHorovod(), environment=ENVIRONMENT)
    job.wait(logs=False, timeout=120)
    assert job.status == "Completed"
    assert clusters.all_text(job).count("the rate is 0.25") == 2, "rank 0's, halved once"


@pytest.mark.horovod
@pytest.mark.parametrize("slow", [False, True], ids=["at once", "after the hosts"])
def test_hosts_that_discovery_does_not_name_do_not_train(slow: bool, make: clusters.Make) -> None:
    hosts_file = make.folder / "hosts"
    hosts_file.write_text("one\n")
    script = make.folder / "discover"
    script.write_text(f"#!/bin/sh\nwhile [ ! -e '{make.marks}/up' ]; do sleep 0.05; done\ncat '{hosts_file}'\n")
    script.chmod(0o755)
    options = {"max_hosts": 3, "workers": 1, "warm": False, "discovery": str(script if slow else hosts_file)}
    job = make.start(MEETING, hosts=3, distribution={"elastic_horovod": {"enabled": True, **options}})
    if slow:
        ready = {"algo-1", "algo-2", "algo-3"}
        clusters.until(lambda: {event.host for event in job.record.events("host_ready")} == ready)
    make.mark("up")
    until_size(job, 1)
    clusters.until(lambda: job.hosts == ["algo-1"], check=lambda: check(job))
    hosts_file.write_text("one\ntwo\n")
    until_size(job, 1, 2)
    assert job.hosts == ["algo-1", "algo-4"]
    hosts_file.write_text("one\ntwo:3\n")
    said = "discovery: two (algo-4) has 3 slots now, but the job keeps using 1."
    clusters.until(lambda: said in clusters.all_text(job), check=lambda: check(job))
    make.mark("enough")
    job.wait(logs=False, timeout=60)
    assert job.status == "Completed"
    assert "discovery lists 1 of the 3 initial hosts, so algo-3 leaves" in clusters.all_text(job)


@pytest.mark.horovod
def test_the_first_hosts_are_waited_for_and_a_discovery_that_names_too_few_holds_the_training(
    make: clusters.Make,
) -> None:
    def start(name: str, first: str, **options: object) -> tuple[TrainingJob, Path]:
        hosts_file = make.folder / name
        hosts_file.write_text(first)
        values = {"enabled": True, "min_hosts": 2, "warm": False, "discovery": str(hosts_file), **options}
        return make.start(MEETING, hosts=2, distribution={"elastic_horovod": values}), hosts_file

    patience = math.ceil(3 * clusters.slowness())
    job, hosts_file = start("patient", "one\n")
    impatient, its_hosts = start("impatient", "one\ntwo\n", elastic_timeout=patience)

    def until_said(text: str) -> None:
        clusters.until(lambda: text in clusters.all_text(job), check=lambda: check(job))

    until_said(
        "the training needs 2 workers to begin (instance_count=2), but has only 1. It waits for the other workers, "
        "up to 600 s. Discovery lists one."
    )
    hosts_file.write_text("one\ntwo\n")
    until_size(job, 2)
    until_size(impatient, 2)
    its_hosts.write_text("one\n")
    hosts_file.write_text("two\n")
    until_said(
        "the training needs at least 2 workers, but has only 1. It waits for more workers, up to 600 s. "
        "Missing: algo-1 (one)."
    )
    hosts_file.write_text("")
    clusters.until(lambda: len(list(job.record.events("host_leaving"))) == 2, check=lambda: check(job))
    hosts_file.write_text("one\ntwo\n")  # who is named again before anybody else has come has everything still
    until_said("2 workers are ready again: the training goes on.")
    assert sizes(job) == [2] and job.hosts == ["algo-1", "algo-2"]
    with pytest.raises(TrainingJobError):
        impatient.wait(logs=False, timeout=60)
    assert impatient.failure is not None and impatient.failure.message == (
        f"elastic training: too few workers for {patience} s (elastic_timeout): 1 of at least 2 (min_hosts=2); "
        "missing: algo-2 (two)."
    )
    make.mark("enough")
    job.wait(logs=False, timeout=60)
    assert job.status == "Completed"


@pytest.mark.horovod
def test_a_training_with_too_few_waits_for_its_time_unless_nobody_is_left_and_says_why_it_ends(
    make: clusters.Make,
) -> None:
    two_on_one = {"enabled": True, "processes_per_host": 2, "min_workers": 2, "warm": False, "cooldown": [60, 60]}
    failing = {"FAILS": "1"}
    alone = make.start(MEETING, distribution={"elastic_horovod": two_on_one}, environment=failing)
    late = make.start(
        MEETING, distribution={"elastic_horovod": {**two_on_one, "elastic_timeout": 1}}, environment=failing
    )
    never = clusters.fit(
        make(
            MEETING,
            hosts=2,
            distribution={"elastic_horovod": {"enabled": True, "min_hosts": 2, "warm": False, "elastic_timeout": 1}},
        ),
        wait=False,
        faults=[RemoveHost("algo-2", at_s=0)],
    )
    why = "elastic training: too few workers for 1 s (elastic_timeout): 1 of"
    for job, wanted in (
        (late, "at least 2 (min_workers=2)"),
        (never, "2 to begin with (instance_count=2); missing: algo-2"),
    ):
        with pytest.raises(TrainingJobError) as caught:
            job.wait(logs=False, timeout=60)
        assert job.failure is not None and job.failure.message == f"{why} {wanted}."
        assert job.failure.message in str(caught.value)
    assert late.failure is not None
    assert late.failure.hints == ("the last failure: algo-1, worker 1: exited with code 1",)
    assert (sizes(late), sizes(never)) == ([2], [])
    said = "the training needs at least 2 workers, but has only 1. It waits for more workers, up to 600 s."
    clusters.until(lambda: said in clusters.all_text(alone), check=lambda: check(alone))
    ipc_client.request(alone.record, {"op": "kill_rank", "rank": 0})
    with pytest.raises(TrainingJobError, match="out of memory"):
        alone.wait(logs=False, timeout=60)


@pytest.mark.horovod
def test_too_few_since_a_market_took_hosts_for_a_time_is_no_failure(make: clusters.Make) -> None:
    patience = math.ceil(2 * clusters.slowness())
    job = make.start(
        MEETING,
        hosts=2,
        distribution={"elastic_horovod": {"enabled": True, "min_hosts": 2, "warm": False, "elastic_timeout": patience}},
        use_spot_instances=True,
        max_run=600,
        max_wait=900,
        options={
            "spot_market": SpotMarket(trace=[(patience, "algo-2", 3.0 * patience)], notice_s=0.1),
            "failure_policy": FailurePolicy(max_failures=0),
        },
    )
    clusters.until(lambda: job.describe()["Fleetfit"]["attempt"] == 1, check=lambda: check(job))
    clusters.until(lambda: sizes(job)[-1:] == [2], check=lambda: check(job))
    make.mark("enough")
    job.wait(logs=False, timeout=60)
    assert job.status == "Completed"
    (ending,) = job.describe()["Fleetfit"]["attempts"]
    assert (ending["kind"], ending["taken"], ending["failure"]) == ("preemption", ["algo-2"], None)
    said = f"too few workers for {patience} s (elastic_timeout). Another attempt begins when algo-2 is back."
    assert said in clusters.all_text(job)


@pytest.mark.horovod
def test_a_markets_trace_takes_hosts_and_gives_them_back(make: clusters.Make) -> None:
    # What a moment brings about must come before the next one, on a busy machine too.
    second = (1 + clusters.slowness()) / 2
    taken, above, below = 1.6 * second, 4.2 * second, 5.7 * second
    both_s = below - above - 0.2
    market = SpotMarket(
        trace=[(taken, "algo-2", 0.3), (above, "algo-1", both_s), (above, "algo-2", both_s)], notice_s=0.2
    )
    job = make.start(
        MEETING,
        hosts=2,
        distribution={"elastic_horovod": {"enabled": True, "warm": False}},
        use_spot_instances=True,
        max_run=600,
        max_wait=900,
        options={"spot_market": market},
    )

    def sizes_of(attempt: int) -> list[int]:
        return [event.data["size"] for event in job.record.events("resized") if event.attempt == attempt]

    clusters.until(lambda: sizes_of(1)[-1:] == [2], check=lambda: check(job))
    make.mark("enough")
    job.wait(logs=False, timeout=60)
    assert job.status == "Completed"
    assert sizes_of(0) == [2, 1, 2]  # the trace's host, and what came in its place
    answer = job.describe()
    began = next(one["StartTime"] for one in answer["SecondaryStatusTransitions"] if one["Status"] == "Training")
    told = [
        (event.kind, event.data.get("name") or event.data.get("target"), event.time_ns / 1e9 - began)
        for event in job.record.events()
        if event.kind in ("notice", "returned", "restart")
    ]
    # The attempt that has lost its hosts may still be ending when the first of them comes back.
    assert "restart" in [kind for kind, _, _ in told[4:6]], told
    *names, last = [(kind, host) for kind, host, _ in told if kind != "restart"]
    assert names == [
        ("notice", "algo-2"), ("returned", "algo-3"),
        ("notice", "algo-1"), ("notice", "algo-3"), ("returned", "algo-1"),
    ]  # fmt: skip
    # With the first one the next attempt can begin, to which the other is a new host.
    assert last in (("returned", "algo-2"), ("returned", "algo-4"))
    told.sort(key=lambda one: one[0] == "restart")
    moments = (taken, taken + 0.5, above, above, below, below, above)
    assert all(at_s >= moment - 0.1 for (_, _, at_s), moment in zip(told, moments, strict=True)), told
    (ending,) = answer["Fleetfit"]["attempts"]
    assert (ending["kind"], ending["failure"]) == ("preemption", None)


@pytest.mark.horovod
def test_a_job_that_fails_or_loses_its_supervisor_goes_on_from_its_last_save(make: clusters.Make) -> None:
    job = make.start(
        FAILING,
        hosts=1,
        options={"failure_policy": FailurePolicy(max_failures=1, cooldown=(0.0, 0.0))},
        distribution=ElasticHorovod(max_hosts=2, cooldown=(0.1, 1.0)),
        environment=ENVIRONMENT,
    )
    make.marked("epoch-4")  # by the second attempt, which began with the third epoch
    # The record knows it a moment later than the mark.
    clusters.until(lambda: [event.data["epoch"] for event in job.record.events("data")] == [0, 1, 2, 2, 3, 4])
    # From a machine a checkpoint takes a moment to come.
    clusters.until(lambda: 4 in [json.loads(path.read_text())["progress"]["epoch"] for path in manifests(job)])
    assert job.add_hosts(1) == ["algo-2"]
    snapshot = clusters.Snapshot(job)
    os.kill(int(job.record.read_status()["Fleetfit"]["supervisor_pid"]), signal.SIGKILL)
    snapshot.await_end()
    assert clusters.await_terminal(job) == "Failed"
    (make.marks / "epoch-4").unlink()
    resumed = TrainingJob(*resume(JobRecord.open(job.name), attached=False))
    make.marked("epoch-4")
    assert resumed.add_hosts(1) == ["algo-3"]  # a name is never another host's
    resumed.remove_host("algo-3")
    make.mark("enough")
    resumed.wait(logs=False, timeout=120)
    assert resumed.status == "Completed"
    assert worker_report(resumed) == {"epochs": 2}
    assert [ending["attempt"] for ending in resumed.describe()["Fleetfit"]["attempts"]] == [0, 1]


@pytest.mark.horovod
def test_spot_hosts_go_and_come_back_and_a_stop_is_told_to_all_and_saved_once(make: clusters.Make) -> None:
    job = clusters.fit(
        make(
            ENDLESS,
            hosts=2,
            distribution=ElasticHorovod(max_hosts=2),
            environment=ENVIRONMENT,
            use_spot_instances=True,
            max_run=600,
            max_wait=900,
        ),
        wait=False,
        # The second one has all that train then: they save, and what has come back by the notice's end goes on.
        faults=[
            Interrupt("algo-2", 4.0, at_line="trains 2", return_after_s=0.0),
            Interrupt("algo-1", 8.0, at_line="trains 1", return_after_s=0.0),
        ],
    )
    clusters.until(lambda: sizes(job)[:2] == [2, 1], check=lambda: check(job))
    clusters.until(lambda: job.describe()["Fleetfit"]["attempt"] == 1, check=lambda: check(job))
    [interrupted] = [event.data for event in job.record.events("preempted")]
    (make.marks / "trained-2").unlink()
    # Each rank has its batch, so the learning rate goes with the ranks.
    assert (make.marked("trained-1"), make.marked("trained-2")) == ("0.5", "1.0")
    began_at = next(event.data for event in job.record.events("data") if event.attempt == 1)
    assert (began_at["epoch"], began_at["position"]) == (0, interrupted["position"]) and began_at["position"] > 0
    job.stop(grace=100)
    began = time.monotonic()
    job.wait(logs=False, timeout=120)
    assert time.monotonic() - began < 90  # nobody had to be killed at the end of the grace
    assert (job.status, job.secondary_status) == ("Stopped", "Stopped")
    told = kinds(job)
    assert [told.count(kind) for kind in ("notice", "returned", "preempted", "worker_lost")] == [2, 2, 2, 0]
    saved = [event.data["step"] for event in job.record.events("checkpoint") if event.data.get("action") == "saved"]
    left = [event.data for event in job.record.events("preempted")]
    assert saved == [data["step"] for data in left]
    assert left[1]["epoch"] == 0 and left[1]["position"] > left[0]["position"]
    (ending,) = job.describe()["Fleetfit"]["attempts"]
    assert (ending["kind"], ending["taken"]) == ("preemption", ["algo-1"])
    log = b"".join(line.data for line in job.log_lines()).decode()
    assert "algo-2 has a preemption notice: the host leaves within 4 s" in log
    assert log.count("stopping after SIGTERM: the training is saved") == 2


@pytest.mark.horovod
def test_who_comes_when_all_that_had_the_state_are_gone_goes_on_from_the_checkpoint(make: clusters.Make) -> None:
    job = make.start(
        LOSING,
        distribution=ElasticHorovod(max_hosts=2, cooldown=(600.0, 600.0)),
        environment=ENVIRONMENT,
    )
    make.marked("epoch-1")
    job.add_hosts(1)
    job.wait(logs=False, timeout=240)
    assert job.status == "Completed"
    [lost] = [event.data for event in job.record.events("state_lost")]
    assert lost["epoch"] >= 2 and lost["step"] == 2 * lost["epoch"]
    assert (make.marks / f"epoch-{lost['epoch']}").read_text() == "algo-2"
    log = b"".join(line.data for line in job.log_lines()).decode()
    assert f"had received the state: back to the checkpoint of step {lost['step']}" in log
    # What the next rank 0 saves is newer by its number too, whosever files it has.
    saved = sorted(path.parent.name for path in manifests(job))
    steps = [int(name.rpartition("-")[2]) for name in saved]
    assert steps == sorted(steps) and steps[-1] > lost["step"]


@pytest.mark.horovod
def test_a_script_that_fails_on_every_worker_fails_the_job_with_its_traceback(make: clusters.Make) -> None:
    with pytest.raises(TrainingJobError) as caught:
        make.run(
            "import horovod.tensorflow as hvd\nhvd.init()\nraise ValueError('no data')",
            hosts=2,
            distribution=ElasticHorovod(),
            environment=ENVIRONMENT,
        )
    assert str(caught.value).endswith("ValueError: no data")


def test_what_cannot_be_elastic_is_refused(make: clusters.Make, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a").touch()
    lame = tmp_path / "discover.sh"
    lame.write_text("#!/bin/sh\necho a\n")
    for arguments, inputs, words in (
        ({"distribution": ElasticHorovod(min_hosts=3)}, None, "instance_count=2 is not between min_hosts=3"),
        ({"distribution": ElasticHorovod(discovery="/no/such")}, None, "there is no such file"),
        ({"distribution": ElasticHorovod(exclusion="/no/such.py:Rule")}, None, "there is no such file"),
        ({"distribution": ElasticHorovod(discovery=lame)}, None, rf"not executable: `chmod \+x {lame}`"),
        (
            {"distribution": ElasticHorovod()},
            TrainingInput(str(tmp_path / "data"), distribution="ShardedByS3Key"),
            "FullyReplicated",
        ),
    ):
        with pytest.raises((ConfigurationError, UnsupportedError), match=words):
            clusters.fit(make("pass", hosts=2, **arguments), inputs)
