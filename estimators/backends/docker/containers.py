"""Describe the containers of a job with pure functions: their mounts, environment variables, limits and commands.

``plan()`` shows the descriptions as ``docker`` commands. The backend sends the same values to the container engine.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from container.contract import hyperparameters as codec
from container.contract import variables
from container.contract.frozen import dataclass
from container.contract.layout import DEFAULT_BASE_DIR
from container.system.locations import path_here
from estimators.backends import config, local
from estimators.backends.docker import naming
from estimators.backends.docker.options import SECRETS, ContainerOptions, Mount
from estimators.backends.images.toolkit import IMAGE, TOOLKIT_LABEL
from estimators.job import fleets
from estimators.job.request import JobOptions, TrainingJobSpec

#: Labels of everything that a job creates in the engine. Jobs of different users may have the same name, but their
#: records have different paths.
JOB_LABEL = "fleetfit.job"
RECORD_LABEL = "fleetfit.record"
HOST_LABEL = "fleetfit.host"
#: The command that SageMaker runs in a container: ``docker run IMAGE train``.
TRAIN = "train"
#: A container's network interface to the other hosts.
INTERFACE = "eth0"
#: The user's code in a container.
CODE = f"{DEFAULT_BASE_DIR}/code"
#: AWS's variables for region and endpoints, which contain no secrets.
_AWS_SETTINGS = ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")


@dataclass(frozen=True, kw_only=True)
class ContainerPlan:
    """The description of a container.

    Attributes:
        host: The name of the host, which is also the container's name in the network.
        name: The container's name in the container engine.
        image: The image.
        entrypoint: The entry point. If empty, the image's entry point is used.
        command: The arguments after the entry point.
        environment: The container's environment variables, without credentials.
        mounts: The files and folders of this machine that are mounted in the container.
        labels: The labels that identify the container's job.
        network: The name of the job's network. If empty, the container has no network.
        limits: The container's limits.
        gpus: The numbers of the container's GPUs. An empty tuple means all GPUs, and None means no GPU.
        lifeline: Whether the container's standard input stays open until the supervisor ends. Our toolkit then detects
            that the supervisor has ended.
        user: The user that the container's program runs as. If empty, the image's user is used.
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
        """Return the ``docker run`` command that would start an equal container."""
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
    """Return the job's image. If the job names no image, return fleetfit's own image."""
    return spec.algorithm.image or IMAGE


def runs_toolkit(spec: TrainingJobSpec, labels: Iterable[str]) -> bool:
    """Return whether our toolkit runs in the job's containers.

    It does if the image contains the toolkit, and the job starts no other program.

    Args:
        spec: The job.
        labels: The labels of the image.
    """
    algorithm = spec.algorithm
    return TOOLKIT_LABEL in labels and not algorithm.entry_point and tuple(algorithm.arguments) in ((), (TRAIN,))


def network_of(spec: TrainingJobSpec) -> str:
    """Return the name of the job's network."""
    return f"fleetfit-{spec.name}"


def labels_of(spec: TrainingJobSpec, record: Path) -> dict[str, str]:
    """Return the labels of all containers and networks that a job creates in the container engine."""
    return {JOB_LABEL: spec.name, RECORD_LABEL: str(record)}


def keeps_names(spec: TrainingJobSpec, *, toolkit: bool) -> bool:
    """Return whether the names of hosts that have ended must stay resolvable for the other hosts.

    Only images without our toolkit need this (see :mod:`~estimators.backends.docker.naming`).
    """
    return not toolkit and len(spec.hosts) > 1


def facts(options: JobOptions) -> config.BackendFacts:
    """Return the backend's values for the configuration files of a container."""
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
    """Return the description of a host's container.

    Args:
        spec: The job.
        options: The run options of the job.
        host: The name of the host.
        record: The path of the job's record. The host's tree in the record is mounted as ``/opt/ml``.
        checkpoints: The folder of the job's checkpoints, which all hosts share.
        environment: The container's environment variables.
        secrets: The folder to mount as :data:`SECRETS`.
        inputs: The mounts of the job's channels (:func:`channel_mounts`).
        attempt: The number of the attempt.
        toolkit: Whether our toolkit runs in the container (:func:`runs_toolkit`).
        gpus: The number of GPUs of this machine, for ``local_gpu``.

    Raises:
        ConfigurationError: the backend's options are invalid.
    """
    limits = ContainerOptions.of(options.backend_options)
    algorithm = spec.algorithm
    place = spec.checkpoint.local_path if spec.checkpoint is not None else None
    tree = record / "hosts" / host / "ml"
    # Folders are mounted one by one, so that an image's other files in /opt/ml, such as its code, stay visible.
    folders = ["input", "model", "output"]
    folders += ["code"] if spec.submit_directory is not None else []
    folders += ["pipe_state"] if local.piped(spec) else []  # Pipe mode readers count epochs in it
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
    """Return the environment variables of a host's toolkit.

    If several hosts share this machine's cores, one of the variables contains the number of these hosts.
    """
    found = dict(config.host_config(spec, host, facts(options)).environment)
    if len(spec.hosts) > 1 and ContainerOptions.of(options.backend_options).cpus is None:
        found[variables.HOSTS_HERE] = str(len(spec.hosts))
    return found


def gpus_of(spec: TrainingJobSpec, host: str, gpus: int) -> tuple[int, ...] | None:
    """Return the numbers of the GPUs that a host gets. Return an empty tuple for all GPUs, and None for no GPU.

    Several hosts get disjoint sets if the machine has at least one GPU for each of them. Otherwise, each host gets all
    GPUs. A job whose instance type has no GPUs gets none.
    """
    if not fleets.capabilities(spec.instance_type).needs_gpus:
        return None
    number, each = spec.hosts.index(host), gpus // len(spec.hosts)
    return tuple(range(number * each, (number + 1) * each)) if each and len(spec.hosts) > 1 else ()


def local_model_dir(spec: TrainingJobSpec) -> Path | None:
    """Return the script's ``model_dir`` if it is a folder of this machine. Otherwise, return None.

    The folder is mounted in containers at the same path.
    """
    value = codec.decode_value(spec.hyperparameters.get(codec.MODEL_DIR))
    if not isinstance(value, str) or value == DEFAULT_BASE_DIR or value.startswith(f"{DEFAULT_BASE_DIR}/"):
        return None
    path = path_here(value)
    return path if path is not None and path.is_absolute() else None


def local_output(spec: TrainingJobSpec) -> Path | None:
    """Return the folder that kept containers mount for the script's ``model_dir``.

    This is the output path if ``model_dir`` is in it, or else ``model_dir`` itself. Return None if ``model_dir`` is not
    a folder of this machine.
    """
    path, output = local_model_dir(spec), path_here(spec.output.path)
    within = path is not None and output is not None and path.is_relative_to(output.absolute())
    return output.absolute() if output is not None and within else path


def planned_inputs(spec: TrainingJobSpec) -> tuple[Mount, ...]:
    """Return the mounts of channels in FastFile mode that are files or folders of this machine.

    Only these mounts are known before the inputs are prepared.
    """
    found = []
    for channel in spec.inputs:
        path = path_here(channel.source.s3.uri) if channel.source.s3 is not None else None
        if path is not None and config.input_mode(spec, channel) == "FastFile":
            target = f"{DEFAULT_BASE_DIR}/input/data/{channel.name}"
            target = f"{target}/{path.name}" if path.is_file() else target
            found.append(Mount(source=str(path.absolute()), target=target, read_only=True))
    return tuple(found)


def channel_mounts(data: Path, channels: Iterable[str]) -> list[Mount]:
    """Return the mounts for channels in FastFile mode. The mounted files are the targets of the links that the host
    agent has created.

    A channel that is one link is replaced by an empty folder, and the channel's data is mounted over the folder. Links
    within a channel are kept: their targets, or a folder that contains all of them, are mounted at the same paths.

    Args:
        data: The folder ``input/data`` of the host's tree.
        channels: The names of the channels in FastFile mode.

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
    """Return those of the caller's environment variables that set AWS's region and endpoints."""
    return {name: environment[name] for name in _AWS_SETTINGS if environment.get(name)}
