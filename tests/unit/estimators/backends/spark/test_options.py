"""What a job may ask of Spark, and what is said of what went wrong there."""

from __future__ import annotations

import socket

import pytest

from estimators.backends.spark import driver
from estimators.backends.spark.options import SparkOptions
from estimators.job.errors import ConfigurationError


def test_without_options_a_host_has_all_of_an_executor_of_the_callers_session() -> None:
    made = SparkOptions.of({})
    assert made.master is None and made.cpus() is None and made.amounts() is None


def test_what_a_host_gets_is_what_was_asked_for() -> None:
    made = SparkOptions.of(
        {
            "master": "spark://head:7077",
            "conf": {"spark.executor.memory": "8g", "spark.executor.instances": 4, "spark.eventLog.enabled": True},
            "resources_per_host": {"CPU": 4, "GPU": 1, "fpga": 2},
            "python": "/opt/python",
            "caller_address": "10.0.0.1",
            "silence": 3,
        }
    )
    assert made.conf == {
        "spark.executor.memory": "8g",
        "spark.executor.instances": "4",
        "spark.eventLog.enabled": "true",
    }
    assert made.cpus() == 4 and made.amounts() == {"gpu": 1, "fpga": 2} and made.silence == 3.0


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"mater": "yarn"}, "Did you mean 'master'"),
        ({"master": "spark head"}, "no master of Spark's"),
        ({"conf": {"spark.executor.memory": "8g"}}, "name its 'master', too"),
        ({"master": "yarn", "conf": {"spark.x": None}}, "must be a string"),
        ({"master": "yarn", "conf": {"spark.hadoop.fs.s3a.secret.key": "x"}}, "stand in the job's record"),
        ({"master": "yarn", "conf": {"spark.dynamicAllocation.enabled": True}}, "set it to false"),
        ({"resources_per_host": {}}, "resources and their amounts"),
        ({"resources_per_host": {"CPU": 0}}, "whole amount from 1 on"),
        ({"resources_per_host": {"GPU": 0.5}}, "whole amount from 1 on"),
        ({"python": "python3"}, "absolute path"),
        ({"caller_address": "head"}, "IPv4"),
        ({"silence": 0}, "more than 0"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        SparkOptions.of(given)


def test_errors_of_sparks_are_one_line() -> None:
    worker = (
        "An error occurred while calling collectAndServe.\n: org.apache.spark.SparkException: Job aborted\n"
        "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
        '  File "x", line 1, in y\n    z()\nOSError: no room\n SQLSTATE: 38000\n\tat org.apache.spark.X(Y.scala:1)\n)'
    )
    assert driver._line(RuntimeError(worker)) == "OSError: no room"
    lost = "ExecutorLostFailure (executor 1 exited): Command exited with code 137\n\tat x"
    assert driver._line(lost) == "ExecutorLostFailure (executor 1 exited): Command exited with code 137"
    assert driver._line(RuntimeError()) == "RuntimeError"
    assert len(driver._line("word " * 1000)) <= 500


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/opt/spark/python/lib/pyspark.zip", True),
        ("/opt/spark/python/lib/py4j-0.10.9.9-src.zip", True),
        ("/opt/spark/jars/spark-core_2.13-4.3.0.jar", True),
        ("/home/me/library", False),
        ("/home/me/code/python", False),
    ],
)
def test_a_script_keeps_the_paths_that_are_not_sparks(path: str, expected: bool) -> None:
    assert driver.is_sparks(path) is expected


@pytest.mark.parametrize(
    ("master", "reason"),
    [("spark://head", "an address is"), ("spark://:7077", "an address is"), ("spark://127.0.0.1:99999", "no Spark at")],
)
def test_what_is_no_address_is_refused(master: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        driver._look_for(master)


def test_a_master_that_does_not_listen_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        driver._look_for(f"spark://{address}")
    with pytest.raises(ValueError, match="Connection refused"):
        driver._look_for(f"spark://{address}")
