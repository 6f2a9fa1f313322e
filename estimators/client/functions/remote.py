"""Run Python functions as training jobs, with the decorator :func:`remote` or with a :class:`RemoteExecutor`.

Both accept the arguments of the SageMaker SDK's ``@remote``, and the estimators' arguments ``distribution``,
``run_options`` and ``capture_limit``. The defaults are read from the SageMaker SDK's configuration file
(``~/.config/sagemaker/config.yaml``).
"""

from __future__ import annotations

import concurrent.futures
import copy
import functools
import os
import re
import tempfile
import threading
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from container.contract import rules
from container.contract.names import shown, unknown
from container.contract.strategies import MPI, TorchDistributed
from estimators.client.estimator import Estimator
from estimators.client.functions import packing, remote_defaults, values
from estimators.client.source import Source
from estimators.client.training_job import TrainingJob
from estimators.job.errors import ArgumentNameError, ConfigurationError, TrainingJobError, UnsupportedError
from estimators.records.states import TrainingJobStatus

#: Arguments of ``@remote`` -> equivalent arguments of estimators.
_NAMES = {
    "environment_variables": "environment",
    "job_name_prefix": "base_job_name",
    "max_runtime_in_seconds": "max_run",
    "max_wait_time_in_seconds": "max_wait",
    "s3_kms_key": "output_kms_key",
    "s3_root_uri": "output_path",
    **{
        name: name
        for name in (
            "capture_limit", "disable_output_compression", "distribution", "encrypt_inter_container_traffic",
            "framework_version", "image_uri", "instance_count", "instance_type", "keep_alive_period_in_seconds",
            "max_retry_attempts", "role", "run_options", "sagemaker_session", "security_group_ids", "subnets", "tags",
            "use_spot_instances", "volume_kms_key", "volume_size",
        )
    },
}  # fmt: skip

#: Arguments of the SageMaker SDK's decorator that are not available -> the alternative, for the error message.
_NOT_OURS = {
    "pre_execution_commands": "run the commands when you build the image, or at the beginning of the function",
    "pre_execution_script": "run the script when you build the image, or at the beginning of the function",
    "job_conda_env": "name the environment's Python: RunOptions(python=…), or an image_uri",
    "custom_file_filter": "fleetfit finds the project's modules through the function's imports",
    "spark_config": "the function runs on Spark's executors, but is not a Spark application",
}

#: Arguments that `_code` and `_distribution` translate into arguments of estimators.
_OTHERS = ("dependencies", "include_local_workdir", "nproc_per_node", "use_mpirun", "use_torchrun")

#: Estimator arguments -> values that request nothing. Arguments with these values are dropped.
_NEUTRAL: dict[str, tuple[Any, ...]] = {"keep_alive_period_in_seconds": (0,), "max_retry_attempts": (1,)}

#: This lock is held while a job starts, because Python 3.11 cannot parse source code in two threads at once (CPython
#: issue 106905).
_starting = threading.Lock()


def remote(function: packing.Function | None = None, /, **arguments: Any) -> packing.Function:
    """Decorate a function. Each call of the decorated function runs the function as a training job.

    ::

        @remote(instance_count=2, distribution=MPI())
        def train(learning_rate, epochs): ...


        accuracy = train(0.1, epochs=4)

    A call starts the job, shows the job's output, waits until the job ends, and returns the return value of rank 0.

    Args:
        function: The function if the decorator is written as ``@remote`` without parentheses, and otherwise None.
        **arguments: The arguments of the SageMaker SDK's ``@remote``, and ``distribution``, ``run_options`` and
            ``capture_limit``.

    Raises:
        ConfigurationError: an argument is wrong.
        UnsupportedError: an argument of the SageMaker SDK is not available. The message names an alternative.
    """
    settings = _estimator_arguments(arguments)

    def decorate(inner: packing.Function) -> packing.Function:
        packing.check(inner)
        return RemoteFunction(inner, settings)

    return decorate(function) if function is not None else decorate


class RemoteFunction:
    """A function that runs as a training job when it is called. :func:`remote` returns such a function.

    Args:
        function: The function.
        settings: The estimator's arguments.

    Attributes:
        wrapped_func: The original function, to call it in this process. The attribute has the same name as in the
            SageMaker SDK.
    """

    def __init__(self, function: packing.Function, settings: Mapping[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self.wrapped_func = function
        self._settings = settings

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Start the job, show the job's output, wait until the job ends, and return the return value of rank 0.

        Raises:
            TypeError: the arguments do not match the function's parameters.
            ConfigurationError: the function or an argument cannot be sent to another process.
            TrainingJobError: the job failed for another reason than an exception in the function.
            Exception: the exception that the function raised on a host. The exception's cause shows the traceback of
                that host.
        """
        estimator = self.estimator(*args, **kwargs)
        try:
            return estimator.fit().value()
        except TrainingJobError as error:
            raised = values.of_function(error)
            raise raised from raised.__cause__

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Bind a decorated method to an object, as Python does for methods. Without an object, return this function."""
        if instance is None:
            return self
        return RemoteFunction(types.MethodType(self.wrapped_func, instance), self._settings)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the original function instead of this object.

        Therefore a job that uses the function calls it directly, and does not start a second job.
        """
        return copy.copy, (self.wrapped_func,)  # copy.copy() returns a function unchanged

    def estimator(self, *args: Any, **kwargs: Any) -> Estimator:
        """Return the estimator that a call with the given arguments would use to start the job.

        The estimator is useful for ``plan()`` or ``fit(wait=False)``.

        Raises:
            TypeError: the function does not take these arguments.
        """
        return _estimator(self._settings, self.wrapped_func, args, kwargs)


class RemoteFuture(concurrent.futures.Future[Any]):
    """A ``concurrent.futures.Future`` for the return value of a function that runs as a training job.

    Args:
        estimator: The estimator that starts the job.
    """

    def __init__(self, estimator: Estimator) -> None:
        super().__init__()
        self._estimator = estimator
        self._told_to_cancel = threading.Event()

    @property
    def job(self) -> TrainingJob | None:
        """Return the training job, or None if the job has not started yet."""
        return self._estimator.latest_training_job

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the job has ended, with any status.

        Raises:
            TimeoutError: the job has not ended after ``timeout`` seconds.
        """
        if not concurrent.futures.wait([self], timeout).done:
            raise TimeoutError(f"the job has not ended within {timeout} s")

    def cancel(self) -> bool:
        """Cancel the call: remove the function from the executor's queue, or request that its running job stops.

        Returns:
            True if the function was removed from the queue, or the stop was requested. A job that completes at the same
            moment still returns its value. False if the job has ended.
        """
        if super().cancel():
            return True
        if self.done():
            return False
        self._told_to_cancel.set()  # a job that is just starting is stopped as soon as it has started
        if self.job is not None:
            self.job.stop()
        return True


class RemoteExecutor(concurrent.futures.Executor):
    """An executor that runs functions as training jobs. Several jobs can run at the same time.

    ::

        with RemoteExecutor(max_parallel_jobs=2, instance_type="local") as executor:
            futures = [executor.submit(train, rate) for rate in (0.1, 0.01, 0.001)]
            accuracies = [future.result() for future in futures]

    Args:
        max_parallel_jobs: The maximum number of jobs that run at the same time. Additional jobs wait.
        **arguments: The arguments of :func:`remote`.

    Raises:
        ConfigurationError: an argument is wrong.
        UnsupportedError: an argument of the SageMaker SDK is not available.
    """

    def __init__(self, *, max_parallel_jobs: int = 1, **arguments: Any) -> None:
        rules.whole(1)("max_parallel_jobs", max_parallel_jobs)
        self._settings = _estimator_arguments(arguments, "RemoteExecutor", "max_parallel_jobs")
        self._pool = concurrent.futures.ThreadPoolExecutor(max_parallel_jobs, thread_name_prefix="fleetfit-remote")
        self._lock = threading.Lock()
        self._futures: set[concurrent.futures.Future[Any]] = set()
        self._folder = tempfile.TemporaryDirectory(prefix="fleetfit-remote-", ignore_cleanup_errors=True)
        self._copies: dict[tuple[Any, ...], str] = {}
        self._closed = False

    def submit(self, function: packing.Function, /, *args: Any, **kwargs: Any) -> RemoteFuture:
        """Schedule a job that calls a function with the given arguments, and return a future for the return value.

        The job starts when fewer than ``max_parallel_jobs`` jobs are running.

        Raises:
            TypeError: the function does not take these arguments.
            ConfigurationError: the function or an argument cannot be sent to another process.
            RuntimeError: the executor has been shut down.
        """
        self._check_open()
        estimator = _estimator(self._settings, function, args, kwargs)
        with _starting:
            draft = estimator._draft(None, None)
            draft.plan()  # raise errors in the arguments in this call, and not later in the future
            assert draft.source is not None  # a function always has a source
            with self._lock:
                self._check_open()
                source = self._keep(draft.source)
        future = RemoteFuture(estimator)
        with self._lock:
            self._check_open()
            self._futures.add(future)
        future.add_done_callback(self._forget)
        self._pool.submit(_run, estimator, future, source)
        return future

    def map(  # type: ignore[override]
        self, function: packing.Function, *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> list[Any]:
        """Call a function once for each item, and return the return values in the order of the items.

        Each call is a job.

        Args:
            function: The function.
            *iterables: The arguments of the calls. As with the built-in ``map``, the first call gets the first item of
                each iterable.
            timeout: The maximum time to wait for all jobs, in seconds.
            chunksize: This argument of the base class has no effect, because each call is a separate job.

        Raises:
            TimeoutError: some jobs have not ended in time. The running jobs are stopped.
            Exception: a function raised an exception. The other jobs are stopped.
        """
        futures = [self.submit(function, *items) for items in zip(*iterables, strict=False)]
        try:
            done, waiting = concurrent.futures.wait(futures, timeout, concurrent.futures.FIRST_EXCEPTION)
            if waiting and not any(future.exception() for future in done):
                raise TimeoutError(f"{len(waiting)} of {len(futures)} jobs have not ended within {timeout} s")
            failed = next((future for future in futures if future in done and future.exception()), None)
            if failed is not None:
                failed.result()
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more functions, and optionally wait for the submitted functions.

        Args:
            wait: Whether to wait until the submitted functions have ended.
            cancel_futures: Whether to cancel the submitted functions first, and to stop their jobs.
        """
        with self._lock:
            self._closed = True
            waiting = list(self._futures)
            self._tidy()
        for future in waiting if cancel_futures else ():
            future.cancel()
        self._pool.shutdown(wait=wait)

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        # After a failure or an interrupt, the remaining jobs are not needed.
        self.shutdown(cancel_futures=kind is not None)

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the executor has been shut down, and accepts no more functions")

    def _keep(self, source: Source) -> Source:
        """Copy a function's code, and return a source that refers to the copy.

        The job may start much later. With the copy, edits of the code do not change the job in the meantime. Functions
        with the same code share one copy.
        """
        found = source.found()
        state = tuple(
            (entry.name, entry.link, entry.size, _time_of(entry.origin) if entry.origin else 0)
            for entry in found.listing.entries
        )
        if state not in self._copies:
            folder = tempfile.mkdtemp(dir=self._folder.name)
            found.copy_to(folder)
            self._copies[state] = folder
        return source.from_copy(self._copies[state])

    def _forget(self, future: concurrent.futures.Future[Any]) -> None:
        with self._lock:
            self._futures.discard(future)
            self._tidy()

    def _tidy(self) -> None:
        """Remove all copies of code if the executor has been shut down and all its jobs have ended."""
        if self._closed and not self._futures:
            self._folder.cleanup()


def _time_of(file: str) -> int:
    try:
        return os.stat(file).st_mtime_ns
    except OSError:  # the later copy reports the error or leaves the file out
        return 0


def _run(estimator: Estimator, future: RemoteFuture, source: Source) -> None:
    """Run a job in a thread of the executor, wait until the job has ended, and set the future's result."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        with _starting:
            if future._told_to_cancel.is_set():
                raise concurrent.futures.CancelledError("cancelled before its job started")
            job = estimator._launch(None, None, None, (), attached=True, source=source)
        if future._told_to_cancel.is_set():
            job.stop()
        job.wait(logs=False)
        if job.status is TrainingJobStatus.STOPPED:
            raise concurrent.futures.CancelledError(f"job {job.name} was stopped")
        future.set_result(job.value())
    except TrainingJobError as error:
        future.set_exception(values.of_function(error))
    except BaseException as error:  # noqa: BLE001 - the future raises it
        future.set_exception(error)


def _estimator(
    settings: Mapping[str, Any], function: packing.Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Estimator:
    packing.check(function)
    packing.check_call(function, args, kwargs)
    called = functools.partial(function, *args, **kwargs) if args or kwargs else function
    base = re.sub(r"[^A-Za-z0-9]+", "-", packing.name_of(function)).strip("-")
    return Estimator(**{"base_job_name": base or "function", **settings, "entry_point": called})


# --- arguments ---


def _estimator_arguments(given: Mapping[str, Any], of: str = "remote()", *own: str) -> dict[str, Any]:
    """Translate the arguments of ``@remote`` or of :class:`RemoteExecutor` into the estimator's arguments.

    Args:
        given: The arguments by name.
        of: The name of the decorator or class, for error messages.
        *own: The names of arguments that only this class has, for error messages.

    Raises:
        ConfigurationError: an argument is unknown, or two arguments contradict each other.
        UnsupportedError: an argument is not available.
    """
    known = [*own, *_NAMES, *_NOT_OURS, *_OTHERS]
    for name in given:
        if name not in known:
            raise ArgumentNameError(unknown(f"argument of {of}", name, known))
    defaults = remote_defaults.read()
    asked = {**defaults, **{name: value for name, value in given.items() if value is not None}}
    for name, instead in _NOT_OURS.items():
        if asked.get(name):
            raise UnsupportedError(f"{name} is not available: {instead}.")
    found = {_NAMES[name]: value for name, value in asked.items() if name in _NAMES}
    for name, neutral in _NEUTRAL.items():
        if found.get(name) in neutral:
            del found[name]
    if given.get("tags"):
        found["tags"] = _tags(given["tags"], defaults.get("tags") or ())
    found.update(_code(asked))
    found.update(_distribution(asked))
    Estimator(entry_point="train.py", **found)  # raise errors in the arguments now, and not in the first call
    return found


def _tags(given: Any, defaults: Iterable[Any]) -> list[Any]:
    """Return the given tags, and the default tags whose keys are not among the given tags.

    Args:
        given: The tags: a mapping from keys to values, a list of pairs, or a list of dicts as for SageMaker.
        defaults: The default tags.
    """
    listed = list(given.items()) if isinstance(given, Mapping) else list(given)
    found = [{"Key": tag[0], "Value": tag[1]} if isinstance(tag, tuple) and len(tag) == 2 else tag for tag in listed]
    keys = [tag["Key"] for tag in found if isinstance(tag, dict) and "Key" in tag]
    return [*found, *(tag for tag in defaults if not isinstance(tag, dict) or tag.get("Key") not in keys)]


def _code(asked: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if asked.get("include_local_workdir"):
        found["source_dir"] = os.getcwd()
    dependencies = asked.get("dependencies")
    if dependencies is not None:
        if not str(dependencies).endswith(".txt"):
            raise UnsupportedError(
                f"dependencies={shown(dependencies)}: conda environments are not supported. Give a requirements.txt "
                "or an image_uri."
            )
        if Path(str(dependencies)).name != "requirements.txt":
            raise ConfigurationError(f"dependencies={shown(dependencies)}: the file's name must be requirements.txt.")
        found["dependencies"] = [os.path.abspath(str(dependencies))]
    return found


def _distribution(asked: Mapping[str, Any]) -> dict[str, Any]:
    kinds = [name for name in ("distribution", "use_mpirun", "use_torchrun") if asked.get(name)]
    if len(kinds) > 1:
        raise ConfigurationError(f"{' and '.join(kinds)} exclude each other. Give only one of these arguments.")
    each = asked.get("nproc_per_node")
    if kinds == ["use_mpirun"]:
        return {"distribution": MPI(processes_per_host=each or 1)}
    if kinds == ["use_torchrun"]:
        return {"distribution": TorchDistributed(**({"processes_per_host": each} if each else {}))}
    if each is not None:
        raise ConfigurationError(
            "nproc_per_node is for use_mpirun and use_torchrun only. Set the number of processes in distribution "
            "instead."
        )
    return {}
