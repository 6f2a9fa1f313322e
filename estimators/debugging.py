"""A job as one process in the foreground, so that ``pdb`` and ``breakpoint()`` work: ``fleetfit train --debug``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import container
from container.contract import variables
from container.contract.failures import Cause, Failure, describe_end
from estimators import backends
from estimators.backends import config, local
from estimators.backends.process import write_tree
from estimators.draft import Draft
from estimators.errors import ConfigurationError
from estimators.jobs import status as statuses
from estimators.jobs.launch import fill
from estimators.jobs.record import JobRecord
from estimators.jobs.states import SecondaryStatus


def run(draft: Draft) -> tuple[JobRecord, int]:
    """Run a checked draft's entry point in this terminal.

    Nothing of it is supervised: its output goes to the terminal and not to the record, and Ctrl-C is its own.

    Args:
        draft: A job of one host and without a strategy.

    Returns:
        The job's record, and the entry point's exit code (128 + signal if one killed it).

    Raises:
        ConfigurationError: a channel could not be linked.
        JobExistsError: the name is taken.
        RecordError: the record cannot be written.
    """
    spec, options = draft.spec, draft.options
    record = JobRecord.create(spec.name)
    try:
        fill(record, spec, options, draft.source, time.time())
        (host,) = spec.hosts
        write_tree(record, spec, host)
        program = os.path.join(Path(next(iter(container.__path__))).resolve(), "__main__.py")
        _link_channels(draft, record, [options.python, "-I", program, "agent"])
        status = statuses.transition(record.read_status(), SecondaryStatus.TRAINING, time.time())
        record.write_status(status)
        env = {
            **os.environ,
            **config.host_config(spec, host).environment,
            variables.BASE_DIR: str(record.tree(host).base),
        }
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
        record.release()


def _link_channels(draft: Draft, record: JobRecord, agent: list[str]) -> None:
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
        raise ConfigurationError(done.stderr.strip() or f"the channels could not be linked ({done.returncode}).")


def _in_foreground(command: list[str], env: dict[str, str]) -> int:
    """Run it with our terminal; Ctrl-C is its own business."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = subprocess.Popen(
            command, env=env, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler)
        )
        code = process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    return code if code >= 0 else 128 - code


def check(instance_type: str) -> None:
    """Refuse a place where there is no foreground.

    Raises:
        ConfigurationError: it is not this machine's processes.
    """
    if backends.backend_name(instance_type) != "local_process":
        raise ConfigurationError(
            f"--debug runs on this machine, in the foreground; instance_type {instance_type!r} does not. Leave it out."
        )


def say_where(record: JobRecord) -> None:
    """Tell where the files of the run are."""
    print(f"the run's files: {record.tree(record.hosts[0]).base}", file=sys.stderr)
