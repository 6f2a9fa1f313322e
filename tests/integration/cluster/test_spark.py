"""Jobs on Spark's executors: what only Spark has. What all clusters hold, they hold here too (:mod:`places`).

Java and PySpark are not part of what ``make test`` needs, so that they are run by ``make test-all`` alone.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import clusters
import documents
import places
import pytest
import spark_session as sparks
from run_documents import project_of, run_document

from container.formats import example, tfrecord
from estimators import BackendError, ConfigurationError, FailurePolicy, UnsupportedError
from estimators.inputs import TrainingInput

pytestmark = pytest.mark.spark


@pytest.fixture
def make(spark: sparks.Session, tmp_path: Path, home: Path) -> clusters.Make:
    """Makes estimators whose jobs run on the session's executors."""
    return places.on_spark(tmp_path, home)


def test_a_job_of_three_hosts_runs_on_three_executors_and_gives_all_back(
    make: clusters.Make, spark: sparks.Session
) -> None:
    job = make.run(
        """
        import os
        import aid
        print("long " + "x" * 100_000)
        for number in range(5_000):
            print(f"line {number} {'é' * (number % 40)}")
        with open(os.path.join(os.environ["SM_MODEL_DIR"], aid.HOST), "w") as file:
            file.write(aid.HOST)
        sparks = ("SPARK_", "PYSPARK_", "_PYSPARK_", "PYTHON_", "OMP_NUM")
        names = [name for name in os.environ if name.startswith(sparks)]
        aid.report(sparks=names, gpu=os.environ["CUDA_VISIBLE_DEVICES"])
        """,
        hosts=3,
    )
    assert job.status == "Completed"
    # Spark's variables would have a script that uses Spark take itself for a worker, and its one thread be all it has.
    assert [said["sparks"] for said in clusters.reports(job).values()] == [[]] * 3
    assert [said["gpu"] for said in clusters.reports(job).values()] == [sparks.GPU] * 3
    for rank in range(3):
        printed = clusters.printed(job, rank)
        assert "long " + "x" * 100_000 in printed
        lines = [line.split() for line in printed if line.startswith("line ")]
        assert [int(line[1]) for line in lines] == list(range(5_000))
    assert {path.name for path in (job.record.path / "hosts").glob("*/ml/model/*")} == {"algo-1", "algo-2", "algo-3"}
    clusters.until(lambda: not spark.pids() and not spark.running())
    assert spark.spark.range(10).count() == 10, "the session is its owner's"
    secret = spark.spark.sparkContext._gateway.gateway_parameters.auth_token.encode()
    assert len(secret) > 20
    files = [path for path in job.record.path.rglob("*") if path.is_file()]
    assert files and not [path for path in files if secret in path.read_bytes()], "the session's secret stands there"


@pytest.mark.parametrize("victim", ["supervisor", "executor", "job", "driver", "agent"])
def test_nothing_is_left_on_any_executor_when_something_is_killed(
    victim: str, make: clusters.Make, spark: sparks.Session
) -> None:
    again = "import os, sys\nif os.environ['FLEETFIT_ATTEMPT'] != '0':\n    sys.exit(0)\n"
    policy = FailurePolicy(max_failures=int(victim == "executor"))  # another attempt is made without that one
    job = make.start(again + clusters.LEAVES_A_CHILD, hosts=3, ready=3, options={"failure_policy": policy})
    snapshot = clusters.Snapshot(job)
    roots = [pid for pid in spark.pids() if "--lifeline" in clusters.process(pid).argv]  # type: ignore[union-attr]
    family = {*clusters.below(*roots), *(one for pid in roots if (one := clusters.process(pid)) is not None)}
    assert len(roots) == 3 and sum("time.sleep(300)" in " ".join(one.argv) for one in family) >= 3
    if victim == "supervisor":
        snapshot.supervisor.kill()
    elif victim == "executor":
        spark.kill()
    elif victim == "job":
        spark.spark.sparkContext.cancelAllJobs()
    elif victim == "driver":
        below = clusters.below(snapshot.supervisor.pid)
        next(one for one in below if one.argv[-1].endswith("spark/driver.py")).kill()
        job.stop()
    else:
        os.kill(roots[0], signal.SIGKILL)
    clusters.until(lambda: not any(one.alive for one in family))
    clusters.await_terminal(job)
    answer = job.describe()
    assert job.status == {"driver": "Stopped", "executor": "Completed"}.get(victim, "Failed"), answer
    reason = str(answer["Fleetfit"]["attempts"] if victim == "executor" else answer.get("FailureReason"))
    # Of an executor Spark's own word comes soon, mostly; its name is known before.
    named = {
        "executor": r"was lost: .*[( ]executor \d+ (exited|on)",
        "job": "was lost: .*cancelled",
        "agent": "was lost",
    }
    if victim in named:
        assert re.search(named[victim], reason, re.DOTALL), reason
    clusters.until(lambda: not spark.running())


def test_what_cannot_be_had_is_refused_in_seconds(
    make: clusters.Make, spark: sparks.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.monotonic()
    python = {"backend_options": {"python": "/nonexistent/python"}}
    for settings, said in (
        ({"hosts": sparks.EXECUTORS + 1}, "Spark has 3 executors for 4 hosts, and each host needs one. Start more"),
        ({"hosts": 2, "options": python}, "/nonexistent/python cannot be run there: No such file"),
    ):
        job = make("pass", **settings).fit(wait=False)
        clusters.await_terminal(job)
        assert said in job.describe()["FailureReason"]
    for options, said in (
        ({"backend_options": {"pyton": "/usr/bin/python3"}}, "Did you mean 'python'"),
        ({"dispatcher": "head.example"}, "cannot reach this process's Spark session"),
    ):
        with pytest.raises(UnsupportedError, match=said):
            make("pass", options=options).fit()
    words = [sys.executable, "-m", "estimators.cli.main", "train", str(Path(make("pass").source_dir) / "train.py")]
    done = subprocess.run([*words, "--instance-type", "spark"], capture_output=True, text=True)
    assert done.returncode and "this process has no Spark session" in done.stderr
    context = spark.spark.sparkContext
    changed = context.getConf().set("spark.dynamicAllocation.enabled", "true")
    monkeypatch.setattr(type(context), "getConf", lambda self: changed)
    with pytest.raises(UnsupportedError, match=r"Set \S+ to false, and spark\.executor\.instances"):
        make("pass").fit()
    assert time.monotonic() - began < 60


READS = """
import glob, os
import aid
names = sorted(os.path.basename(path) for path in glob.glob(os.environ["SM_CHANNEL_TRAIN"] + "/*"))
aid.report(files=names, hidden=[name for name in os.listdir(os.environ["SM_CHANNEL_TRAIN"]) if name[0] in "._"])
"""


@pytest.mark.tensorflow
def test_a_data_frame_is_a_channel_that_is_written_once(make: clusters.Make, spark: sparks.Session, home: Path) -> None:
    from pyspark.sql import functions

    frame = spark.spark.range(90, numPartitions=3).select(
        "id", (functions.col("id") / 3).alias("third"), functions.array("id", "id").alias("both")
    )
    job = clusters.fit(make(READS, hosts=3), {"train": frame})
    said = sorted(one["files"] for one in clusters.reports(job).values())
    assert said == [["part-00000.tfrecord"], ["part-00001.tfrecord"], ["part-00002.tfrecord"]]
    frames = home / "frames"
    [folder] = (path for path in frames.iterdir() if path.is_dir())
    [written] = frames.glob("*.manifest")
    manifest = json.loads(written.read_text())
    assert manifest == [{"prefix": f"file://{folder}/"}, *(f"part-0000{index}.tfrecord" for index in range(3))]
    found = {}
    for path in folder.iterdir():
        for data in tfrecord.read(path):
            features = example.decode(data)
            found[features["id"][0]] = (round(features["third"][0], 3), tuple(features["both"]))
    assert found == {number: (round(number / 3, 3), (number, number)) for number in range(90)}
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    again = spark.spark.range(90, numPartitions=3).select(
        "id", (functions.col("id") / 3).alias("third"), functions.array("id", "id").alias("both")
    )
    clusters.fit(make(READS, hosts=1), {"train": again})
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert set(frames.iterdir()) == {folder, written}, "nothing is left of a try"
    # One task is enough: each imports TensorFlow.
    clusters.fit(make(READS, hosts=1), {"train": again.where("id < 50").coalesce(1)})
    assert len(list(frames.iterdir())) == 4


@pytest.mark.tensorflow
def test_of_two_writers_of_one_frame_one_counts_and_a_folder_has_its_files_and_nothing_else(
    make: clusters.Make, spark: sparks.Session, home: Path, tmp_path: Path
) -> None:
    frame = spark.spark.range(20, numPartitions=2)
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(TrainingInput.from_spark, frame.coalesce(1), path=tmp_path / "store") for _ in range(2)]
        uris = {one.result().config["DataSource"]["S3DataSource"]["S3Uri"] for one in both}
    [manifest] = (tmp_path / "store").glob("*.manifest")
    assert len(uris) == 1 and manifest.name in uris.pop()
    [folder] = (path for path in (tmp_path / "store").iterdir() if path != manifest)
    assert json.loads(manifest.read_text())[0] == {"prefix": f"file://{folder}/"}
    assert sum(1 for path in folder.iterdir() for _ in tfrecord.read(path)) == 20
    # Parquet, which Spark writes with files beside it.
    store = tmp_path / "parquet"
    whole = TrainingInput.from_spark(frame, format="parquet", shards=3, path=store, distribution="FullyReplicated")
    job = clusters.fit(make(READS, hosts=2), {"train": whole})
    for said in clusters.reports(job).values():
        assert len(said["files"]) == 3 and said["hidden"] == []
    [folder] = (path for path in store.iterdir() if path.is_dir())
    assert spark.spark.read.parquet(str(folder)).count() == 20
    # Nothing is left of one that fails meanwhile; what cannot be written is refused.
    for query, error, said in (
        (spark.spark.range(0), ConfigurationError, "has no rows"),
        (spark.spark.readStream.format("rate").load(), UnsupportedError, "has no end"),
        (spark.spark.sql("select current_date() as day"), ConfigurationError, "column 'day' is date"),
        (
            spark.spark.range(3).selectExpr("cast(raise_error('no such row') as int) as x"),
            BackendError,
            r"could not be written.*no such row",
        ),
    ):
        with pytest.raises(error, match=said):
            make("pass").fit({"train": query})
    assert not (home / "frames").exists() or not list((home / "frames").iterdir())


PROGRAM = """
import os, sys, time
from pyspark.sql import SparkSession
from estimators import RunOptions, TensorFlow
settings = {"spark.ui.enabled": "false", "spark.log.level": "OFF", "spark.executor.memory": "600m"}
spark = SparkSession.builder.master("local-cluster[2,1,700]").config(map=settings).getOrCreate()
job = TensorFlow(
    entry_point="train.py", source_dir=sys.argv[1], instance_count=2, instance_type="spark", model_dir=False,
    environment={"MARKS": sys.argv[2]},
).fit(wait=False)
print(job.name, flush=True)
sys.stdin.readline()
spark.stop()
time.sleep(300)
"""


@pytest.mark.leaves("folders")  # executors have that of all jobs' hosts in the test's
@pytest.mark.parametrize("end", [pytest.param("spark.stop()", marks=pytest.mark.soak), "SIGKILL"])
def test_nothing_is_left_when_the_session_ends(end: str, tmp_path: Path, home: Path) -> None:
    make = clusters.Make(tmp_path)
    code = Path(make(clusters.LEAVES_A_CHILD).source_dir)
    environ = {
        **os.environ,
        **sparks.JAVA,
        sparks.MARK: str(os.getpid()),
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
        "PYSPARK_PYTHON": sys.executable,
    }
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(code), str(make.marks)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environ,
    ) as caller:
        try:
            assert caller.stdin is not None and caller.stdout is not None
            name = caller.stdout.readline().strip()
            for rank in (0, 1):
                make.marked(f"ready-{rank}")
            family = clusters.marked(name)
            assert family
            if end == "SIGKILL":
                caller.kill()
            else:
                caller.stdin.write("\n")
                caller.stdin.flush()
            hosts = [one for one in family if one.kind in ("toolkit", "rank")]
            clusters.until(lambda: not any(one.alive for one in hosts))
            record = home / "jobs" / name / "status.json"
            clusters.until(lambda: json.loads(record.read_text())["TrainingJobStatus"] in ("Failed", "Stopped"))
        finally:
            caller.kill()


@pytest.mark.tensorflow
@pytest.mark.leaves("folders")
@pytest.mark.parametrize("document", documents.that_need("spark"), ids=project_of)
def test_the_blocks_that_need_spark_do_what_the_document_says(
    document: Path, tmp_path: Path, prepared_digits: Path
) -> None:
    here = {**sparks.JAVA, "PYSPARK_PYTHON": sys.executable, "SPARK_WORKER_DIR": str(tmp_path / "workers")}
    run_document(document, tmp_path, "spark", digits=prepared_digits, environment=here)
