"""What is said of what went wrong on Spark, and what hosts have of its workers' environment."""

from __future__ import annotations

import pytest

from estimators.backends.spark import driver


def test_errors_of_sparks_are_one_line() -> None:
    worker = (
        "An error occurred while calling collectAndServe.\n: org.apache.spark.SparkException: Job aborted\n"
        "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
        '  File "x", line 1, in y\n    z()\nOSError: no room\n SQLSTATE: 38000\n\tat org.apache.spark.X(Y.scala:1)\n)'
    )
    assert driver.line_of(RuntimeError(worker)) == "OSError: no room"
    lost = "ExecutorLostFailure (executor 1 exited): Command exited with code 137\n\tat x"
    assert driver.line_of(lost) == "ExecutorLostFailure (executor 1 exited): Command exited with code 137"
    assert driver.line_of(RuntimeError()) == "RuntimeError"
    assert len(driver.line_of("word " * 1000)) <= 500


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
