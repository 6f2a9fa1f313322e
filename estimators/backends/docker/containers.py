"""What each container of a job is: pure functions from a job to mounts, variables, limits and a command.

``plan()`` shows them as ``docker`` commands; the backend hands the same values to the engine's API.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from container.contract import hyperparameters as codec
from container.contract import variables
from container.contract.layout import DEFAULT_BASE_DIR
from container.system.locations import path_here
from estimators.backends import config, local
from estimators.backends.docker import naming
from estimators.backends.docker.options import SECRETS, ContainerOptions, Mount
from estimators.backends.images.toolkit import IMAGE, TOOLKIT_LABEL
from estimators.job import fleets
from estimators.job.request import JobOptions, TrainingJobSpec

#: Labels of everything that a job makes on the engine. The record's path tells jobs of different users apart.
JOB_LABEL = "fleetfit.job"
RECORD_LABEL = "fleetfit.record"
HOST_LABEL = "fleetfit.host"
#: What SageMaker runs in a container: ``docker run IMAGE train``.
TRAIN = "train"
#: A container's interface for traffic between the hosts.
INTERFACE = "eth0"
#: The user's code in a container.
CODE = f"{DEFAULT_BASE_DIR}/code"
#: Variables that say where AWS is, without a secret in them.
_AWS_SETTINGS = ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContainerPlan:
    """One container.

    Attributes:
        host: The host that it is, also its name in the network.
        name: Its name on the engine.
        image: The image.
        entrypoint: Instead of the image's own; empty for that.
        command: The words after it.
        environment: Its variables; no credentials are among them.
        mounts: What of this machine it sees.
        labels: What tells whose it is.
        network: The job's network; empty for none.
        limits: Its limits.
        gpus: The devices that it gets, by number; None for none, empty for all.
        lifeline: Whether its standard input is held open, so that our toolkit sees the end of the supervisor.
        user: Who it runs as, if not as the image says.
    """

    host: str
    name: str
    image: str
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = (TRAIN,)
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    network: str = ""
    limits: ContainerOptions = dataclasses.field(default_factory=ContainerOptions)
    gpus: tuple[int, ...] | None = None
    lifeline: bool = False
    user: str = ""

    def command_line(self) -> tuple[str, ...]:
        """Return the ``docker run`` that would start the same container."""
        words = ["docker", "run", "--name", self.name, "--hostname", self.host]
        words += ["--network", self.network, "--network-alias", self.host]
        for mount in self.mounts:
            words += ["-v", mount.text]
        for name, value in self.environment.items():
            words += ["-e", f"{name}={value}"]
        for name, value in self.labels.items():
            words += ["--label", f"{name}={value}"]
        words += ["--shm-size", str(self.limits.shm_size)]
        if self.limits.memory is not None:
            words += ["--memory", str(self.limits.memory)]
        if self.limits.cpus is not None:
            words += ["--cpus", f"{self.limits.cpus:g}"]
        if self.gpus is not None:
            words += ["--gpus", f"device={','.join(map(str, self.gpus))}" if self.gpus else "all"]
        if self.lifeline:
            words.append("--interactive")
        if self.entrypoint:
            words += ["--entrypoint", self.entrypoint[0]]
        return (*words, self.image, *self.entrypoint[1:], *self.command)


def image_of(spec: TrainingJobSpec) -> str:
    """Return the job's image: its own, or ours."""
    return spec.algorithm.image or IMAGE


def runs_toolkit(spec: TrainingJobSpec, labels: Iterable[str]) -> bool:
    """Return whether our toolkit runs in the containers: the image has it, and the job names no program of its own.

    Args:
        spec: The job.
        labels: The image's.
    """
    algorithm = spec.algorithm
    return TOOLKIT_LABEL in labels and not algorithm.entry_point and tuple(algorithm.arguments) in ((), (TRAIN,))


def network_of(spec: TrainingJobSpec) -> str:
    """Return the name of the job's network."""
    return f"fleetfit-{spec.name}"


def labels_of(spec: TrainingJobSpec, record: Path) -> dict[str, str]:
    """Return what marks everything of a job on the engine."""
    return {JOB_LABEL: spec.name, RECORD_LABEL: str(record)}


def keeps_names(spec: TrainingJobSpec, *, toolkit: bool) -> bool:
    """Return whether the hosts must find each other by name also when one of them has ended: ours know each other."""
    return not toolkit and len(spec.hosts) > 1


def facts(options: JobOptions) -> config.BackendFacts:
    """Return what a container's configuration files say of where it is."""
    return config.BackendFacts(
        network_interface=INTERFACE, submit_directory=CODE, instance_type=options.asked_instance_type
    )


def plan_container(
    spec: TrainingJobSpec,
    options: JobOptions,
    host: str,
    *,
    record: Path,
    checkpoints: Path,
    environment: Mapping[str, str],
    secrets: Path | None = None,
    inputs: Sequence[Mount] = (),
    attempt: int = 0,
    toolkit: bool = True,
    gpus: int = 0,
) -> ContainerPlan:
    """Plan a host's container.

    Args:
        spec: The job.
        options: How it is run.
        host: The host.
        record: The job's record, whose tree of the host becomes its ``/opt/ml``.
        checkpoints: The folder of the job's checkpoints, which all hosts share.
        environment: Its variables.
        secrets: The folder that becomes :data:`SECRETS`.
        inputs: What its channels need of this machine; see :func:`channel_mounts`.
        attempt: Which start of the job it is.
        toolkit: Whether our toolkit runs in it; see :func:`runs_toolkit`.
        gpus: How many GPUs this machine has, for ``local_gpu``.

    Raises:
        ConfigurationError: the backend's options make no sense.
    """
    limits = ContainerOptions.of(options.backend_options)
    algorithm = spec.algorithm
    place = spec.checkpoint.local_path if spec.checkpoint is not None else None
    tree = record / "hosts" / host / "ml"
    # Folder by folder: what else an image has in /opt/ml stays, its own code among that.
    folders = ["input", "model", "output"]
    folders += ["code"] if spec.submit_directory is not None else []
    folders += ["pipe_state"] if local.has_pipes(spec) else []  # where readers count the epochs
    mounts = [Mount(source=str(tree / folder), target=f"{DEFAULT_BASE_DIR}/{folder}") for folder in folders]
    mounts.append(Mount(source=str(checkpoints), target=place or f"{DEFAULT_BASE_DIR}/checkpoints"))
    if (model_dir := local_model_dir(spec)) is not None:
        mounts.append(Mount(source=str(model_dir), target=str(model_dir)))
    if secrets is not None:
        mounts.append(Mount(source=str(secrets), target=SECRETS, read_only=True))
        if keeps_names(spec, toolkit=toolkit):
            mounts.append(Mount(source=str(secrets / naming.FILE), target=naming.TARGET))
    return ContainerPlan(
        host=host,
        name=f"fleetfit-{spec.name}-{host}" + (f"-{attempt}" if attempt else ""),
        image=image_of(spec),
        entrypoint=tuple(algorithm.entry_point),
        command=tuple(algorithm.arguments) if algorithm.entry_point or algorithm.arguments else (TRAIN,),
        environment={**environment, **({variables.LIFELINE_FD: "0"} if toolkit else {})},
        mounts=(*mounts, *inputs, *limits.mounts),
        labels={**labels_of(spec, record), HOST_LABEL: host},
        network=network_of(spec),
        limits=limits,
        gpus=gpus_of(spec, host, gpus),
        lifeline=toolkit,
    )


def environment_of(spec: TrainingJobSpec, options: JobOptions, host: str) -> dict[str, str]:
    """Return the variables that a host's configuration gives its toolkit, which shares this machine's cores."""
    found = dict(config.host_config(spec, host, facts(options)).environment)
    if len(spec.hosts) > 1 and ContainerOptions.of(options.backend_options).cpus is None:
        found[variables.HOSTS_HERE] = str(len(spec.hosts))
    return found


def gpus_of(spec: TrainingJobSpec, host: str, gpus: int) -> tuple[int, ...] | None:
    """Return the GPUs of one of several hosts on a machine: a part of its own if there are enough.

    Empty means all of them; None is for a job that asks for none.
    """
    if not fleets.capabilities(spec.instance_type).needs_gpus:
        return None
    number, each = spec.hosts.index(host), gpus // len(spec.hosts)
    return tuple(range(number * each, (number + 1) * each)) if each and len(spec.hosts) > 1 else ()


def local_model_dir(spec: TrainingJobSpec) -> Path | None:
    """Return the script's ``model_dir`` if it is a folder of this machine, which containers then need at its path."""
    value = codec.decode_value(spec.hyperparameters.get(codec.MODEL_DIR))
    if not isinstance(value, str) or value == DEFAULT_BASE_DIR or value.startswith(f"{DEFAULT_BASE_DIR}/"):
        return None
    path = path_here(value)
    return path if path is not None and path.is_absolute() else None


def local_output(spec: TrainingJobSpec) -> Path | None:
    """Return the folder of this machine below which the script's ``model_dir`` is, if it is on this machine."""
    path, output = local_model_dir(spec), path_here(spec.output.path)
    within = path is not None and output is not None and path.is_relative_to(output.absolute())
    return output.absolute() if output is not None and within else path


def planned_inputs(spec: TrainingJobSpec) -> tuple[Mount, ...]:
    """Return what a job's channels will need of this machine, as far as it is known before they are there."""
    found = []
    for channel in spec.inputs:
        path = path_here(channel.source.s3.uri) if channel.source.s3 is not None else None
        if path is not None and config.input_mode(spec, channel) == "FastFile":
            target = f"{DEFAULT_BASE_DIR}/input/data/{channel.name}"
            target = f"{target}/{path.name}" if path.is_file() else target
            found.append(Mount(source=str(path.absolute()), target=target, read_only=True))
    return tuple(found)


def channel_mounts(data: Path, channels: Iterable[str]) -> list[Mount]:
    """Return what of this machine the links lead to that the host agent made for channels in FastFile mode.

    A channel that is one link becomes an empty folder, over which its data is mounted; links within a channel keep
    their targets, which are mounted where they are.

    Args:
        data: ``input/data`` of the host's tree.
        channels: The names of these channels.

    Raises:
        OSError: the tree cannot be changed.
    """
    mounts: list[Mount] = []
    for name in channels:
        place, target = data / name, f"{DEFAULT_BASE_DIR}/input/data/{name}"
        if place.is_symlink():
            mounts.append(Mount(source=str(place.resolve()), target=target, read_only=True))
            place.unlink()
            place.mkdir()
        elif place.is_dir():
            links = [entry.readlink() for entry in place.rglob("*") if entry.is_symlink()]
            if len(links) > 1 and (top := Path(os.path.commonpath([path.parent for path in links]))) != Path("/"):
                links = [top]
            mounts += [Mount(source=str(path), target=str(path), read_only=True) for path in links]
            mounts.append(Mount(source=str(place), target=target, read_only=True))
    return list(dict.fromkeys(mounts))


def aws_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the caller's variables that say where AWS is."""
    return {name: environment[name] for name in _AWS_SETTINGS if environment.get(name)}
