"""Run a job as one process in the foreground, so that ``pdb`` and ``breakpoint()`` work.

``fleetfit train --debug`` and ``Estimator.debug()`` use this module.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import container
from container.contract import pipes, variables
from container.contract.failures import Cause, Failure, describe_end
from container.system import processes
from estimators.backends import config, local, trees
from estimators.backends.trees import write_tree
from estimators.client.functions import values
from estimators.client.launch import fill
from estimators.client.prepared_job import Draft
from estimators.client.printing import in_jupyter
from estimators.job import fleets
from estimators.job.errors import ConfigurationError, TrainingJobError
from estimators.records import status as statuses
from estimators.records.record import JobRecord
from estimators.records.states import SecondaryStatus

if TYPE_CHECKING:
    from estimators.client.estimator_base import EstimatorBase


def run_estimator(estimator: EstimatorBase, inputs: Any, job_name: str | None) -> Any:
    """Run an estimator's entry point in this terminal. ``Estimator.debug()`` describes the arguments and errors."""
    if in_jupyter():
        raise ConfigurationError(
            "debug() needs a terminal, which a notebook does not have. Instead, call the function directly and use "
            "%debug: the function then runs in this kernel, as the only process of its cluster."
        )
    check(estimator.settings.instance_type, "debug()")
    alone = copy.copy(estimator)
    alone._settings = dataclasses.replace(estimator.settings, distribution=None, instance_count=1)
    draft = alone._draft(inputs, job_name)
    draft.check()
    record, code = run(draft)
    failure = statuses.failure_of(record.read_status())
    if code != 0 and failure is not None:
        from estimators.client.training_job import TrainingJob

        error = TrainingJobError(TrainingJob(record), failure)
        raise error from values.debugged_exception(record)
    return values.debugged_value(record) if values.is_function(record) else None


def run(draft: Draft) -> tuple[JobRecord, int]:
    """Run the entry point of a job in this terminal. The caller has checked the job with :meth:`Draft.check`.

    No supervisor process is started. The output is written to the terminal and not to the record. Ctrl-C interrupts the
    script and not this process.

    Args:
        draft: A job with one host and without a strategy.

    Returns:
        The job's record, and the entry point's exit code (128 + signal number if a signal killed the process).

    Raises:
        ConfigurationError: a channel uses FastFile mode from S3, or its data could not be prepared.
        JobExistsError: a job with this name exists.
        RecordError: the record cannot be written.
    """
    spec, options = draft.spec, draft.options
    if local.mounted(spec):
        raise ConfigurationError(
            "--debug does not support FastFile mode from S3. Use input_mode='File' or 'Pipe' for the channel."
        )
    left = [local.synced_checkpoints(spec), spec.output.path if local.output_dir(spec) is None else None]
    for uri in filter(None, left):
        print(f"--debug: nothing is uploaded to {uri} or downloaded from there", file=sys.stderr)
    record = JobRecord.create(spec.name)
    try:
        fill(record, spec, options, draft.source, time.time())
        (host,) = spec.hosts
        write_tree(record, spec, host)
        program = os.path.join(Path(next(iter(container.__path__))).resolve(), "__main__.py")
        agent = [options.python, "-I", program, "agent"]
        _bring_channels(draft, record, agent)
        status = statuses.transition(record.read_status(), SecondaryStatus.TRAINING, time.time())
        record.write_status(status)
        env = {
            **config.caller_environment(os.environ),
            **config.host_config(spec, host).environment,
            variables.BASE_DIR: str(record.tree(host).base),
        }
        with _fed_pipes(draft, record, agent):
            code = _in_foreground([options.python, "-I", program, "debug"], env)
        if code == 0:
            status = statuses.transition(status, SecondaryStatus.COMPLETED, time.time())
        else:
            end = describe_end(code, None) if code < 128 else describe_end(None, code - 128)
            failure = Failure(cause=Cause.PROCESS, message=end, host=host, process="rank 0", rank=0, exit_code=code)
            status = statuses.fail(status, failure, time.time())
        record.write_status(status)
        return record, code
    finally:
        trees.remove_inputs(record, spec)
        record.release()


def _bring_channels(draft: Draft, record: JobRecord, agent: list[str]) -> None:
    if not draft.spec.inputs:
        return
    base = str(record.tree(draft.spec.hosts[0]).base)
    channels = Path(base) / "input" / "channels.json"
    channels.write_text(json.dumps(local.agent_channels(draft.spec)), encoding="utf-8")
    done = subprocess.run(
        [*agent, "prepare", "--base-dir", base, "--channels", str(channels)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ConfigurationError(done.stderr.strip() or f"the channels could not be prepared (exit {done.returncode}).")


@contextlib.contextmanager
def _fed_pipes(draft: Draft, record: JobRecord, agent: list[str]) -> Iterator[None]:
    """Write the data of channels in Pipe mode to named pipes while the context is active.

    An agent process, which prepares data for a host, writes to the pipes. Its output is printed in this terminal.
    """
    if not local.piped(draft.spec):
        yield
        return
    (host,) = draft.spec.hosts
    tree = record.tree(host)
    for channel in local.piped(draft.spec):  # the pipes must exist before the script starts
        os.mkfifo(pipes.fifo(tree.data, channel, 0), 0o600)
    words = ["pipe", "--base-dir", str(tree.base), "--channels", str(tree.base / "input" / "channels.json")]
    # The agent runs in a new session, so that Ctrl-C interrupts only the script.
    pid = processes.spawn([*agent, *words, "--host", host], env=dict(os.environ), new_session=True)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)


def _in_foreground(command: list[str], env: dict[str, str]) -> int:
    """Run a command in this terminal, and return its exit code (128 + signal number if a signal killed the command).

    Ctrl-C reaches only the command. If this process is killed, the command is killed, too.
    """
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _, status = os.waitpid(processes.spawn(command, env=env, stdin=0), 0)
    finally:
        signal.signal(signal.SIGINT, before)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def check(instance_type: str | None, asked: str = "--debug") -> None:
    """Check that a job can run in the foreground.

    Args:
        instance_type: The job's instance type.
        asked: The option or method that the user called, for the error message.

    Raises:
        ConfigurationError: the hosts of this instance type are not processes of this machine.
    """
    if not fleets.capabilities(instance_type).this_python:
        raise ConfigurationError(
            f"{asked} runs the script as a process of this machine, in the foreground, and does not support "
            f"instance_type {instance_type!r}. Leave instance_type out."
        )
