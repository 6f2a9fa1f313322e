"""Create a Python environment for jobs on a host, once, without root and without a package index on the host.

The environment contains the packages of this machine's environment, or the packages that a job requests. The
environment's name contains a hash of its content. If a host has an environment with this name, fleetfit uses the
environment without checking its content. Otherwise, fleetfit sends uv to the host. uv creates the environment with the
host's own Python of the same minor version. If the host reaches a package index, the packages are downloaded from the
index. Otherwise, this machine sends the packages' wheels.

    python -m estimators.backends.hosts.environment

creates an environment as a separate program. The program reads a JSON object from standard input: ``words``, the
command line that reaches the host, and ``environment``, the arguments of :meth:`PythonEnvironment.of`. It prints its
progress.
"""

from __future__ import annotations

import gzip
import io
import json
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from container.contract.frozen import dataclass
from container.system.files import cache_root
from estimators.backends.hosts import login_shell
from estimators.backends.hosts.provider import HostError as HostError
from estimators.backends.hosts.provider import Say
from estimators.backends.hosts.shipping import CACHE
from estimators.provision import uv, wheelhouse
from estimators.provision.errors import ProvisionError
from estimators.provision.locks import exclusive
from estimators.provision.packages import Installation
from estimators.provision.progress import ProgressDisplay

#: Seconds between two progress messages.
_SAY_EVERY_S = 5.0
#: Longest progress message of pip that is shown whole, in characters.
_LONGEST = 100

#: Shell script that inspects a host. ``$1``: the environment's name, ``$2``: the required Python version (``3.11``),
#: ``$3``: uv's version. Each line of the output is a fact.
_LOOK = f"""
b="{CACHE}"
echo "processor $(uname -m)"
test -x "$b/$1/bin/python" && echo ready
test -x "$b/uv-$3" && echo uv
for p in "python$2" python3 python "$HOME/.local/bin/python$2" "$HOME/.pyenv/shims/python$2" "/opt/python$2/bin/python3"
do
  q=$(command -v "$p" 2>/dev/null) || continue
  v=$("$q" -I -c 'import sys; print("%d.%d" % sys.version_info[:2], sys.executable)' 2>/dev/null) || continue
  echo "python $v"
done
mkdir -p "$b" && chmod 700 "$b"
echo "free $(df -Pk "$b" | tail -n 1 | awk '{{print $4}}')"
"""
#: Shell script that stores a program. ``$1``: the program's path below our folder on the host. The gzipped program is
#: read from standard input.
_TAKE_PROGRAM = f"""
set -e; umask 077; b="{CACHE}"; t="$b/.$1.$$"
trap 'rm -f "$t"' EXIT
gzip -dc > "$t"; chmod 700 "$t"; mv "$t" "$b/$1"
"""
#: Shell script that unpacks a tar archive from standard input. ``$1``: the target folder below our folder on the host.
_TAKE_WHEELS = f"""
set -e; umask 077; b="{CACHE}"; mkdir -p "$b/$1"; tar -xf - -C "$b/$1"
"""
#: Shell script that creates an environment. ``$1``: the environment's name, ``$2``: the Python that the environment
#: uses, ``$3``: uv's version, ``$4``: the folder of wheels, ``$5``: uv's options for finding packages; then the
#: requirements. The environment appears only when it is complete. When standard input ends, fleetfit's process has
#: ended, and the script kills its process group. (sshd gives each command a group.) If a firewall drops the packets of
#: uv, uv gives up the package index after 4 s.
_MAKE = f"""
set -e; umask 077; b="{CACHE}"; n="$1"; p="$2"; u="$b/uv-$3"; w="$b/$4"; how="$5"; shift 5
t="$b/.$n.$$"
trap 'exit 1' TERM
watch=
trap 'kill $watch 2>/dev/null || true; rm -rf "$t"' EXIT
exec 3<&0
(trap - TERM EXIT; cat <&3 >/dev/null; kill -TERM 0) >/dev/null 2>&1 &
watch=$!
find "$b" -maxdepth 1 \\( -name '.*' -o -name 'wheels-*' \\) -mmin +600 -exec rm -rf {{}} + 2>/dev/null || true
export UV_PYTHON_DOWNLOADS=never UV_NO_CONFIG=1 NO_COLOR=1 UV_LINK_MODE=hardlink
export UV_HTTP_CONNECT_TIMEOUT=4 UV_HTTP_TIMEOUT=15 UV_HTTP_RETRIES=1
mkdir -p "$w"
"$u" -q venv --relocatable --no-project --python "$p" "$t"
"$u" pip install --no-deps --python "$t/bin/python" $how --find-links "$w" "$@"
"$t/bin/python" -I -c 'import sys'
mv -T "$t" "$b/$n" 2>/dev/null || test -x "$b/$n/bin/python"
rm -rf "$w"
"""


@dataclass(frozen=True, kw_only=True)
class PythonEnvironment:
    """A Python environment for a host.

    Attributes:
        name: The environment's name on the host. The name contains a hash of the environment's content.
        python: The major and minor version of the environment's Python, such as ``3.11``.
        processor: The type of processor for which the packages are built, as ``uname -m`` prints it.
        wheels: The packages of the environment.
    """

    name: str
    python: str
    processor: str
    wheels: wheelhouse.Wheels

    @classmethod
    def of(
        cls,
        requirements: Sequence[str] | None,
        also: Sequence[str] = (),
        *,
        frameworks: Sequence[str] = ("tensorflow",),
        horovod: bool = True,
    ) -> PythonEnvironment:
        """Describe an environment with the given requirements.

        Args:
            requirements: The requirements in pip's syntax. If None, the environment contains the packages for training
                that are installed here.
            also: More packages of this machine's environment to include if ``requirements`` is None.
            frameworks: The frameworks to include if ``requirements`` is None. Horovod is included if its wheel is
                available.
            horovod: Whether Horovod is required. If Horovod is required and installed here, a missing wheel of Horovod
                is an error. Otherwise, an environment without Horovod is described.

        Raises:
            ProvisionError: the packages installed here are not sufficient for training, or Horovod has no wheel.
        """
        if requirements is None:
            here = _here()
            wheels = wheelhouse.of_environment(
                here,
                frameworks=frameworks,
                horovod_too=horovod and "horovod" in here.installed(),
                also=also,
            )
        else:
            wheels = wheelhouse.of_requirements(requirements)
        python = f"{sys.version_info[0]}.{sys.version_info[1]}"
        processor = platform.machine()
        name = f"env-{wheels.key}-{python}-{processor}"
        return cls(name=name, python=python, processor=processor, wheels=wheels)


def _here() -> Installation:
    return Installation.of_venv(Path(sys.prefix))


def is_here(package: str) -> bool:
    """Return whether a package is installed in this machine's environment."""
    try:
        return package in _here().installed()
    except ProvisionError:
        return False


class Shell:
    """Run shell scripts on a host through a command line such as ``ssh HOST``.

    Args:
        words: This command line. :meth:`run` appends the ``sh`` command with the script and its arguments, as one more
            argument.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._words = list(words)

    def run(
        self,
        script: str,
        *arguments: str,
        feed: Callable[[IO[bytes]], None] | None = None,
    ) -> tuple[int, list[str]]:
        """Run a script with ``sh`` on the host, and return its exit code and the lines of its output.

        Args:
            script: The script.
            arguments: The script's arguments ``$1`` and so on.
            feed: A function that writes the script's standard input to the given pipe.
        """
        argv = [*self._words, login_shell.line(["sh", "-c", script, "sh", *arguments])]
        with subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process:
            assert process.stdout is not None
            if feed is not None:  # otherwise the pipe stays open until the script or this process has ended
                assert process.stdin is not None
                try:
                    feed(process.stdin)
                    process.stdin.close()
                except BrokenPipeError:  # the process's output gives the reason
                    pass
            lines = [raw.decode("utf-8", "replace").rstrip() for raw in process.stdout]
        return process.returncode, lines


def prepare(shell: Shell, environment: PythonEnvironment, say: Say) -> None:
    """Create an environment on a host, unless the environment already exists on the host.

    Args:
        shell: A shell on the host.
        environment: The environment to create.
        say: A function that receives progress messages.

    Raises:
        HostError: the host has a different type of processor than this machine, no suitable Python or too little disk
            space, or a step failed.
        ProvisionError: this machine cannot obtain the wheels.
    """
    found = _look(shell, environment)
    if found.ready:
        say("its environment exists")
        return
    began = time.monotonic()
    wheels = wheelhouse.fetch(environment.wheels, _here(), progress=_SeldomProgress(say))
    files = sorted(wheels.glob("*.whl"))
    size = sum(path.stat().st_size for path in files)
    if found.free is not None and found.free < 5 * size:
        raise HostError(
            f"its disk has {found.free >> 20} MiB free, but the environment needs about {5 * size >> 20} MiB. Make "
            "room in ~/.cache/fleetfit on the host, or set XDG_CACHE_HOME there"
        )
    if not found.uv:
        say(f"sending uv {uv.VERSION}")
        packed = _packed_uv()
        code, lines = shell.run(_TAKE_PROGRAM, f"uv-{uv.VERSION}", feed=lambda pipe: _copy(packed, pipe))
        _check(code, lines, "uv could not be copied there")
    folder = f"wheels-{environment.name}"
    own = environment.wheels.own
    if own is not None:
        _send(shell, folder, [wheels / own.name], say)
    pins = [_pin(path) for path in files]

    def make(how: str) -> tuple[int, list[str]]:
        words = (environment.name, found.python, uv.VERSION, folder, how)
        return shell.run(_MAKE, *words, *pins)

    say(f"installing {len(files)} packages from its package index")
    code, lines = make("--quiet")
    if code != 0:
        say(f"its package index does not serve the packages ({_last(lines)}); sending the wheels, {size >> 20} MiB")
        _send(shell, folder, files, say)
        say(f"installing {len(files)} packages")
        code, lines = make("--no-index")
    _check(code, lines, "the packages could not be installed")
    say(f"its environment is ready after {time.monotonic() - began:.0f} s")


class _SeldomProgress(ProgressDisplay):
    """A progress display that shows the user a message about the wheels at most every few seconds."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._said = -_SAY_EVERY_S

    def detail(self, text: str) -> None:
        if time.monotonic() - self._said >= _SAY_EVERY_S:
            self._said = time.monotonic()
            shown = text if len(text) <= _LONGEST else f"…{text[-_LONGEST:].partition(', ')[2]}"
            self._say(f"wheels here: {shown}")


@dataclass(frozen=True, kw_only=True)
class _Found:
    ready: bool
    uv: bool
    python: str
    free: int | None


def _look(shell: Shell, environment: PythonEnvironment) -> _Found:
    code, lines = shell.run(_LOOK, environment.name, environment.python, uv.VERSION)
    _check(code, lines, "the host could not be inspected")
    known: dict[str, list[str]] = {}
    for line in lines:
        word, _, rest = line.partition(" ")
        known.setdefault(word, []).append(rest)
    processor = known.get("processor", ["?"])[-1]
    if processor != environment.processor:
        raise HostError(
            f"the host's processor is {processor}, but this machine's packages are for {environment.processor}. Make "
            "an environment on the host yourself, and name its interpreter with backend_options={'python': …}"
        )
    pythons = dict(reversed([text.split(" ", 1) for text in known.get("python", ()) if " " in text]))
    if environment.python not in pythons:
        there = f"Python {', '.join(sorted(pythons))}" if pythons else "no Python"
        raise HostError(
            f"it has {there}, but this machine's packages are for {environment.python}. Install "
            f"python{environment.python} there, or name an interpreter with backend_options={{'python': …}}"
        )
    free = known.get("free", [""])[-1]
    return _Found(
        ready="ready" in known,
        uv="uv" in known,
        python=pythons[environment.python],
        free=int(free) << 10 if free.isdecimal() else None,
    )


def _check(code: int, lines: Sequence[str], what: str) -> None:
    if code != 0:
        raise HostError(f"{what}: {_last(lines) or f'exit status {code}'}")


def _last(lines: Sequence[str]) -> str:
    """Return the most informative line of a program's output. uv prints the reason of an error before its hints."""
    told = [line.strip() for line in lines if line.strip()]
    caused = [line for line in told if re.search(r"error|Caused by|╰─▶|not found|denied|No space", line)]
    return (caused or told or [""])[-1].removeprefix("╰─▶").strip()


def _pin(wheel: Path) -> str:
    name, version = wheel.name.split("-")[:2]
    return f"{name}=={version}"


def _packed_uv() -> Path:
    """Return the path of the gzipped uv program. The first call creates the gzipped file."""
    packed = cache_root() / "uv" / f"{uv.VERSION}.gz"
    with exclusive(cache_root() / "locks" / "uv-packed.lock"):
        if not packed.exists():
            program = uv.program(cache_root() / "logs" / "uv.log")
            staged = packed.with_suffix(".part")
            with open(program, "rb") as source, gzip.open(staged, "wb", compresslevel=4) as target:
                shutil.copyfileobj(source, target)
            staged.rename(packed)
    return packed


def _copy(source: Path, target: IO[bytes]) -> None:
    with source.open("rb") as file:
        shutil.copyfileobj(file, target)


def _send(shell: Shell, folder: str, files: Sequence[Path], say: Say) -> None:
    whole = sum(path.stat().st_size for path in files)

    def feed(pipe: IO[bytes]) -> None:
        sent, said = 0, time.monotonic()
        with tarfile.open(fileobj=pipe, mode="w|") as archive:
            for path in files:
                info = tarfile.TarInfo(path.name)
                info.size = path.stat().st_size
                with path.open("rb") as file:
                    archive.addfile(info, file if info.size else io.BytesIO())
                sent += info.size
                if time.monotonic() - said > _SAY_EVERY_S:
                    said = time.monotonic()
                    say(f"{sent >> 20} of {whole >> 20} MiB sent")

    code, lines = shell.run(_TAKE_WHEELS, folder, feed=feed)
    _check(code, lines, "the wheels could not be copied there")


def main() -> int:
    """Create the environment that the JSON object on standard input describes. See the docstring of this module.

    If the creation fails, the last line of standard error has the reason.

    Returns:
        The exit code: 0 on success, or 1 if the environment could not be created.
    """
    asked = json.load(sys.stdin)
    try:
        environment = PythonEnvironment.of(**asked["environment"])
        prepare(Shell(asked["words"]), environment, lambda text: print(text, flush=True))
    except HostError as error:
        print(error, file=sys.stderr)
        return 1
    except ProvisionError as error:
        print(str(error).replace("\n", " "), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
