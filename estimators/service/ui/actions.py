"""Execute the actions of the buttons on a job's page.

Each action needs a form with a token that only pages of this server have.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from urllib.parse import parse_qs

from starlette.requests import Request

from estimators import backends
from estimators.client import launch
from estimators.client.checks import check_local
from estimators.client.resizing import resize
from estimators.client.training_job import TrainingJob
from estimators.job.errors import BackendError, ConfigurationError, UnsupportedError
from estimators.job.fleets import capabilities
from estimators.job.naming import base_of_name, job_name
from estimators.job.request import JobOptions, TrainingJobSpec
from estimators.records.record import JobRecord
from estimators.service import web
from estimators.service.ui import files
from estimators.tuning import trials

#: The maximum size of a form, in bytes.
_LARGEST = 65536
#: The maximum number in a form: the seconds of notice, or the number of hosts.
_MOST = 1_000_000
#: The maximum time for verifying checkpoints, in seconds.
_VERIFYING_S = 600.0

Form = Mapping[str, str]


async def read_form(request: Request) -> Form:
    """Return the fields of a form. If a field is repeated, its first value is used.

    Raises:
        ConfigurationError: the request is too long, or not a form.
    """
    body = await web.read_body(request, _LARGEST)
    if body is None:
        raise ConfigurationError(f"the form has more than {_LARGEST} bytes.")
    try:
        found = parse_qs(body.decode("ascii"), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=100)
    except ValueError as error:
        raise ConfigurationError(f"the request is not a valid form: {error}.") from None
    return {name: values[0] for name, values in found.items()}


def stop(record: JobRecord, form: Form) -> str:
    """Request that a job stops. If the form has the field ``now``, the script gets no time to save."""
    TrainingJob(record).stop(grace=0.0 if form.get("now") else None)
    return record.name


def resume(record: JobRecord, form: Form) -> str:
    """Start another attempt of a job that has ended. The job continues even if this server ends."""
    TrainingJob(record).resume(wait=False)
    return record.name


def rerun(record: JobRecord, form: Form) -> str:
    """Start a copy of a job, with the code that the job used, and without the job's checkpoints.

    Returns:
        The name of the new job.

    Raises:
        UnsupportedError: the job ran on other machines.
    """
    spec = TrainingJobSpec.from_request(record.read_request())
    options = JobOptions.from_dict(record.read_options())
    if capabilities(spec.instance_type).managed or options.dispatcher is not None:
        raise UnsupportedError(
            f"training job {record.name!r} ran on other machines, so this page cannot start it again. Start it with "
            f"fit(), or with the command that `fleetfit describe {record.name} --reproduce` prints."
        )
    check_local(spec)
    backends.load(options.backend).check(spec, options)
    name = job_name(base_of_name(record.name))
    trials.start(record, name, {}, record.home)
    return name


def resize_to(record: JobRecord, form: Form) -> str:
    """Resize an elastic job to the requested number of hosts."""
    resize(TrainingJob(record), _number(form, "hosts", least=1))
    return record.name


def interrupt(record: JobRecord, form: Form) -> str:
    """Interrupt a host of an elastic job as if the host were a spot instance. The form has the seconds of notice."""
    TrainingJob(record).interrupt(form.get("host", ""), float(_number(form, "notice")))
    return record.name


#: The last part of a URL path -> the action.
ACTIONS: Mapping[str, Callable[[JobRecord, Form], str]] = {
    "stop": stop,
    "resume": resume,
    "rerun": rerun,
    "resize": resize_to,
    "interrupt": interrupt,
}


def verify(record: JobRecord) -> dict[str, str | None]:
    """Verify every checkpoint of a job.

    Returns:
        A description of the damage of each checkpoint, by the checkpoint's name. None for an intact checkpoint.

    Raises:
        UnsupportedError: the checkpoints are not on this machine.
        BackendError: the checkpoints cannot be read, or verifying them takes too long.
    """
    folder = files.checkpoint_folder(record)
    if folder is None:
        raise UnsupportedError(
            "only checkpoints on this machine can be verified here. A job verifies each checkpoint that it loads."
        )
    command = [*launch.boot("container.checkpoint.verifying"), str(folder)]
    nice = shutil.which("nice")
    try:
        # Gigabytes may have to be read while jobs are training, so a separate process with low priority does this.
        done = subprocess.run(
            [nice, "-n", "10", *command] if nice else command,
            capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd="/", timeout=_VERIFYING_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise BackendError(f"{folder}: not all checkpoints were read within {_VERIFYING_S:g} s.") from None
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2]
        raise BackendError(f"{folder} cannot be verified by {sys.executable}: {last or f'status {done.returncode}'}")
    found: dict[str, str | None] = {}
    for line in done.stdout.splitlines():
        one = json.loads(line)
        found[one["name"]] = one["damage"]
    return found


def _number(form: Form, name: str, least: int = 0) -> int:
    text = form.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) < 8 and least <= int(text) <= _MOST):
        raise ConfigurationError(f"{name}: {text!r} is not a whole number from {least} to {_MOST}.")
    return int(text)
