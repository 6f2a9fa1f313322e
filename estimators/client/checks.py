"""Check a job's channels, outputs, script, packages and options before the job starts."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import container
from container.contract.layout import DEFAULT_BASE_DIR
from container.contract.names import nearest_file, unknown
from container.contract.strategies import (
    DISCOVERED_BY_CALLER,
    FRAMEWORKS,
    MPI,
    Elastic,
    ElasticHorovod,
    ParameterServer,
)
from container.launchers import horovod_builds
from container.system.locations import is_s3, path_here
from estimators.backends.local import agent_channels, piped
from estimators.job import faults, fleets
from estimators.job.errors import ConfigurationError, RecordError, UnsupportedError
from estimators.job.failure_policy import FailurePolicy
from estimators.job.request import InputChannel, RunOptions, TrainingJobSpec
from estimators.records import status as statuses
from estimators.records.record import JobRecord, job_names, jobs_folder

if TYPE_CHECKING:
    from estimators.client.source import Source

_CHECKPOINTS = f"{DEFAULT_BASE_DIR}/checkpoints"


def shared_checkpoints(spec: TrainingJobSpec) -> str | None:
    """Return a warning if another job that has not ended saves its checkpoints in the same place as this job.

    Return None otherwise. Only the jobs in this fleetfit home, the folder ``FLEETFIT_HOME``, are searched.
    """
    if spec.checkpoint is None:
        return None
    for name in job_names():
        record = JobRecord(jobs_folder() / name)
        with contextlib.suppress(RecordError, OSError):  # a record that this user cannot read
            if not record.is_supervised() or statuses.is_terminal(record.stored_status() or {}):
                continue
            theirs = (record.read_request().get("CheckpointConfig") or {}).get("S3Uri") or ""
            elsewhere = record.read_options().get("dispatcher") and not is_s3(theirs)
            if _place(theirs) == _place(spec.checkpoint.uri) and not elsewhere:
                return (
                    f"checkpoint_s3_uri={spec.checkpoint.uri!r}: the job {name!r} has not ended, and saves its "
                    "checkpoints there, too. If both jobs run at the same time, each replaces the checkpoints of the "
                    f"other. Wait for that job (`fleetfit wait {name}`), or give this job another URI."
                )
    return None


def _place(uri: str) -> str:
    """Return a text that is equal for all URIs of one folder on this machine, or of one prefix on S3."""
    path = path_here(uri)
    return uri.rstrip("/") if path is None else os.path.realpath(path)


def check_local(spec: TrainingJobSpec) -> None:
    """Check the channels, outputs and checkpoints of a job that will run on this machine.

    Raises:
        ConfigurationError: a channel's data does not exist or cannot be read, or an output cannot be written.
        UnsupportedError: ``checkpoint_local_path`` is set, but the hosts are processes of this machine, which share all
            paths.
    """
    for channel in spec.inputs:
        _check_channel(channel)
    jobs = jobs_folder()
    if spec.output.path == jobs.as_uri():  # the default
        _check_writable("FLEETFIT_HOME", str(jobs.parent))
    else:
        _check_writable("output_path", spec.output.path)
    if spec.checkpoint is not None:
        _check_writable("checkpoint_s3_uri", spec.checkpoint.uri)
        path = spec.checkpoint.local_path
        containers = fleets.capabilities(spec.instance_type).containers
        if path is not None and path.rstrip("/") != _CHECKPOINTS and not containers:
            raise UnsupportedError(
                f"checkpoint_local_path={path!r} is not available with instance_type={spec.instance_type!r}: processes "
                f"of one machine share its paths. Leave the argument out, and let the script write to os.environ"
                f"['SM_CHECKPOINT_DIR'], which is {_CHECKPOINTS!r} on SageMaker."
            )


def check_syntax(source: Source) -> None:
    """Check that a Python script compiles with this Python version. Other entry points are not checked.

    Args:
        source: The job's code.

    Raises:
        ConfigurationError: the script does not compile. The message shows the file, the line and the column.
    """
    if not source.program.endswith(".py"):
        return
    text = source.entry_text()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings do not make a script invalid
            compile(text, source.program, "exec", dont_inherit=True)
    except SyntaxError as error:
        lines = text.decode("utf-8", "replace").splitlines()
        if error.lineno is not None and error.lineno <= len(lines):
            error.text = f"{lines[error.lineno - 1]}\n"  # Python would search for the file in the working directory
        shown = "".join(traceback.format_exception_only(error)).rstrip()
        raise ConfigurationError(f"the script does not compile, so nothing was started:\n{shown}") from None
    except ValueError as error:  # null bytes
        raise ConfigurationError(f"{source.program} is not a Python script: {error}.") from None
    except (RecursionError, MemoryError):
        return  # do not refuse the script: it may run with other limits


def check_horovod(spec: TrainingJobSpec, source: Source, framework: str | None, python: str) -> None:
    """Check that Horovod was built for the framework that the script uses.

    Nothing is checked if the job's code or its ``requirements.txt`` contains Horovod. If the hosts are other machines,
    the toolkit, which starts the ranks on each host, does this check instead.

    Args:
        spec: The job.
        source: The job's code.
        framework: The estimator's framework.
        python: The interpreter of the job's ranks. The Horovod of this interpreter is checked.

    Raises:
        UnsupportedError: Horovod was not built for the framework. The message contains the command that builds Horovod.
    """
    if not isinstance(spec.strategy, MPI | ElasticHorovod) or "horovod" in source.listing.top:
        return
    if b"horovod" in source.text_of("requirements.txt"):
        return
    needed = horovod_builds.needed_by(source.entry_text(), framework)
    if not needed:
        return
    from estimators.records.provenance import packages

    try:
        built = horovod_builds.built_for(packages.folders_of(python))
    except (OSError, subprocess.SubprocessError, ValueError):
        return  # the interpreter cannot be run: the job will report the cause
    problem = horovod_builds.refusal(source.program, needed, built)
    if problem is not None:
        raise UnsupportedError(problem)


def check_queue(spec: TrainingJobSpec, options: RunOptions) -> None:
    """Check that a job with a queue runs on this machine.

    Raises:
        UnsupportedError: the job's hosts are other machines.
    """
    if options.queue is None:
        return
    hosts = fleets.capabilities(spec.instance_type)
    if not hosts.shared_machine and not hosts.simulated:
        raise UnsupportedError(
            f"RunOptions(queue={options.queue!r}): a queue is only for jobs on this machine, but jobs with "
            f"instance_type={spec.instance_type!r} run on other machines. Leave queue out."
        )


def check_elastic(spec: TrainingJobSpec) -> None:
    """Check the options and channels of an elastic job.

    Raises:
        ConfigurationError: the sizes contradict each other, the discovery script is missing or not executable, or the
            file of the exclusion policy is missing.
        UnsupportedError: the backend cannot add and remove hosts, or the records of a channel cannot be redistributed.
    """
    strategy = spec.strategy
    if not isinstance(strategy, Elastic):
        return
    if not fleets.capabilities(spec.instance_type).elastic:
        raise UnsupportedError(
            f"distribution: {type(strategy).__name__} needs hosts that can be added and removed during the job. "
            f"instance_type={spec.instance_type!r} does not support this yet; {fleets.DEFAULT!r} does."
        )
    least, most = strategy.min_hosts, strategy.most_hosts(spec.instance_count)
    if not least <= spec.instance_count <= most and strategy.discovery is None:
        raise ConfigurationError(
            f"instance_count={spec.instance_count} is not between min_hosts={least} and max_hosts={most} of "
            f"{type(strategy).__name__}."
        )
    of_pipes = piped(spec)
    for channel in spec.inputs:
        if strategy.restarts and channel.name in of_pipes:
            raise UnsupportedError(
                f"channel {channel.name!r}: Pipe mode is not possible with {type(strategy).__name__}, because a "
                "worker that restarts could not read its records again. Use input_mode='File' or 'FastFile'."
            )
        s3 = channel.source.s3
        if s3 is not None and s3.distribution == "ShardedByS3Key":
            raise UnsupportedError(
                f"channel {channel.name!r}: ShardedByS3Key is not possible here, because the records of a host that "
                "leaves would be lost. Use distribution='FullyReplicated': cluster.fit() gives each record to one "
                "rank."
            )
    if strategy.discovery not in (None, DISCOVERED_BY_CALLER):
        _check_discovery(strategy)
    if strategy.exclusion is not None:
        file = Path(strategy.exclusion.rpartition(":")[0])
        if file.suffix == ".py" and not file.is_file():  # the supervisor imports the policy and does the other checks
            raise ConfigurationError(
                f"{type(strategy).__name__}(exclusion={strategy.exclusion!r}): there is no such file."
            )


def _check_discovery(strategy: Elastic) -> None:
    path = Path(strategy.discovery)
    said = f"{type(strategy).__name__}(discovery={str(path)!r})"
    if not path.is_file():
        raise ConfigurationError(f"{said}: there is no such file.")
    try:
        with path.open("rb") as file:
            is_script = file.read(2) == b"#!"
    except OSError as error:
        raise ConfigurationError(f"{said} cannot be read: {error.strerror}.") from error
    if is_script and not os.access(path, os.X_OK):
        raise ConfigurationError(f"{said} is a script that is not executable: `chmod +x {shlex.quote(str(path))}`.")


def check_data(spec: TrainingJobSpec, python: str) -> None:
    """Check the channels and outputs on S3, and check the manifests.

    The hosts' interpreter runs the checks, because it will also read the data. Only quick checks are made: of
    credentials, buckets, regions, empty prefixes, and the syntax and the entries of manifests.

    Args:
        spec: A job for this machine that :func:`check_local` has accepted.
        python: The interpreter of the hosts.

    Raises:
        ConfigurationError: a check failed, or the interpreter lacks the packages that read S3.
    """
    channels = {
        name: values for name, values in agent_channels(spec).items() if is_s3(values["uri"]) or "data_type" in values
    }
    writes = {"output_path": spec.output.path}
    if spec.checkpoint is not None:
        writes["checkpoint_s3_uri"] = spec.checkpoint.uri
    writes = {argument: uri for argument, uri in writes.items() if is_s3(uri)}
    if not channels and not writes:
        return
    program = os.path.join(Path(next(iter(container.__path__))).resolve(), "__main__.py")
    try:
        done = subprocess.run(
            [python, "-I", program, "agent", "check"],
            input=json.dumps({"channels": channels, "writes": writes}),
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise ConfigurationError(f"python={python!r} cannot be started: {error.strerror}.") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        unexplained = f"the data could not be checked (exit code {done.returncode})."
        raise ConfigurationError(lines[-1] if lines else unexplained)


def version_warnings(framework_version: str | None, py_version: str | None, framework: str = "tensorflow") -> list[str]:
    """Return a warning for each requested version that differs from the version on this machine."""
    warnings = []
    if framework_version is not None:
        installed = installed_version(framework)
        if installed is not None and not _matches(framework_version, installed):
            warnings.append(
                f"framework_version={framework_version!r} is not used: local hosts run the installed version, "
                f"{FRAMEWORKS[framework]} {installed}."
            )
    if py_version is not None:
        running = f"{sys.version_info.major}.{sys.version_info.minor}"
        wanted = py_version.removeprefix("py")
        wanted = f"{wanted[0]}.{wanted[1:]}" if wanted.isdigit() and len(wanted) > 1 else wanted
        if not _matches(wanted, running):
            warnings.append(f"py_version={py_version!r} is not used: local hosts run this process's Python, {running}.")
    return warnings


#: Framework -> the distributions that contain it.
_DISTRIBUTIONS = {"tensorflow": ("tensorflow", "tensorflow-cpu"), "torch": ("torch",)}


def installed_version(framework: str) -> str | None:
    """Return the installed version of a framework, or None if the framework is not installed.

    The framework is not imported.
    """
    from estimators.records.provenance.packages import versions  # importing it takes 15 ms

    found = versions(_DISTRIBUTIONS[framework])
    return next((version.partition("+")[0] for version in found.values()), None)


def _matches(wanted: str, running: str) -> bool:
    """Return whether a version, such as ``2.21.0``, begins with the requested numbers, such as ``2.21``."""
    parts = wanted.split(".")
    return running.split(".")[: len(parts)] == parts


def _check_channel(channel: InputChannel) -> None:
    path = path_here(channel.source.s3.uri) if channel.source.s3 is not None else None
    if path is None:
        return  # the backend checks this channel
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: the path contains a NUL character
        raise ConfigurationError(f"channel {channel.name!r}: {str(path)!r} does not exist.{_hint(path)}") from None
    except OSError as error:
        reason = str(error.strerror).lower()
        raise ConfigurationError(f"channel {channel.name!r}: {str(path)!r} cannot be read: {reason}.") from None
    if not os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0)):
        raise ConfigurationError(f"channel {channel.name!r}: {str(path)!r} cannot be read: permission denied.")
    if not path.is_dir() and not path.is_file():
        raise ConfigurationError(f"channel {channel.name!r}: {str(path)!r} is neither a folder nor a file.")


def _hint(path: Path) -> str:
    folder = path.parent
    while not folder.exists():
        folder, path = folder.parent, folder
    try:
        guess = nearest_file(path.name, sorted(os.listdir(folder)))
    except OSError:
        guess = None
    if guess is not None:
        return f" Did you mean {str(folder / guess)!r}?"
    return f" {str(folder)!r} exists." if folder != path.parent else ""


def _check_writable(argument: str, uri: str) -> None:
    if is_s3(uri):
        return  # check_data sends a request to S3 to check this output
    path = path_here(uri)
    if path is None:
        raise UnsupportedError(
            f"{argument}={uri!r}: fleetfit cannot write to this place. Give s3://bucket/prefix, a path or file:///path."
        )
    folder = path
    while not os.path.lexists(folder):
        folder = folder.parent
    if not folder.is_dir():
        raise ConfigurationError(f"{argument}={uri!r} cannot be written: {str(folder)!r} is not a folder.")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = error.strerror
        raise ConfigurationError(f"{argument}={uri!r} cannot be written: {str(folder)!r}: {reason}.") from None


def check_faults(spec: TrainingJobSpec, options: RunOptions) -> None:
    """Check that every host and rank that ``faults=`` or the trace of ``SpotMarket`` names exists in the job.

    Raises:
        ConfigurationError: a named host or rank does not exist.
    """
    faults.check_against(options.faults, hosts=spec.hosts, size=_ranks(spec))
    for host in sorted(options.spot_market.hosts() if options.spot_market is not None else ()):
        if host not in spec.hosts:
            raise ConfigurationError(f"SpotMarket(trace=…): {unknown('host of the job', host, spec.hosts)}")


def refuse_faults(instance_type: str, options: RunOptions) -> None:
    """Raise an error if a job on SageMaker has injected faults, a simulated spot market or a failure policy.

    SageMaker does not support these options.

    Raises:
        UnsupportedError: one of these options is set. The message names the option and an alternative.
    """
    asked = {
        "fit(faults=…)": (bool(options.faults), f"rehearse on {fleets.PROCESSES!r} or {fleets.CONTAINERS!r}"),
        "RunOptions(spot_market=…)": (options.spot_market is not None, "AWS itself interrupts the spot instances"),
        "RunOptions(failure_policy=…)": (
            options.failure_policy != FailurePolicy(),
            "use max_retry_attempts, the number of times that SageMaker restarts a job",
        ),
    }
    for name, (given, remedy) in asked.items():
        if given:
            raise UnsupportedError(f"{name} is not available with instance_type={instance_type!r}: {remedy}.")


def _ranks(spec: TrainingJobSpec) -> int:
    """Return the number of ranks.

    A parameter server strategy with a coordinator has one additional rank, the chief.
    """
    strategy = spec.strategy
    chief = isinstance(strategy, ParameterServer) and strategy.coordinated
    return spec.size + (1 if chief else 0)
