"""Elastic jobs on Spark's executors, which are plain tasks: one that is lost does not end the others."""

from __future__ import annotations

import json
from pathlib import Path

import clusters
import places
import pytest
import spark_session as sparks
from elastic_jobs import MEETING, check, sizes

from estimators import ElasticHorovod

pytestmark = [pytest.mark.horovod, pytest.mark.spark]


def test_a_lost_executor_is_left_out_and_the_one_that_spark_starts_for_it_taken_in(
    spark: sparks.Session, tmp_path: Path, home: Path
) -> None:
    make = places.on_spark(tmp_path, home)
    strategy = ElasticHorovod(max_hosts=3, min_hosts=1, warm=False, cooldown=(0.2, 1.0))
    job = make.start(MEETING, hosts=3, distribution=strategy)
    clusters.until(lambda: sizes(job) == [3], check=lambda: check(job))
    spark.kill()
    clusters.until(lambda: sizes(job)[-2:] == [2, 3], check=lambda: check(job))
    make.mark("enough")
    job.wait(logs=False, timeout=60)
    assert job.status == "Completed", json.dumps(job.describe(), default=str)

    clusters.until(lambda: not spark.pids() and not spark.running())
