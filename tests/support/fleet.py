"""A fleet of machines that are network namespaces of this one, for the tests of ``netns_backend``.

Each has an address of its own on a switch, a host name, and folders for temporary files and shared memory that nobody
else sees: what the tests' jobs have here is hidden from it. Only :attr:`Fleet.marks` is seen by all.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import sshd

import container

HERE = Path(__file__).resolve().parent / "machines"
#: A folder for ``PYTHONPATH``, which makes the backend known.
PLUGIN = HERE / "plugin"
#: Where temporary files of this machine are, of which they see none; a test has a folder of its own in it.
_TEMPORARY = tempfile.gettempdir()
#: What they find: the Python that this one was made with, too.
PATH = (
    f"{os.path.dirname(os.path.realpath(sys.executable))}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)


def _ip(*words: str, inside: str | None = None) -> None:
    done = subprocess.run(
        ["ip", *(("-n", inside) if inside else ()), *words], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"


def plain_environment() -> dict[str, str]:
    """This process's without what is of the test that asks for an engine first."""
    return {name: value for name, value in os.environ.items() if name not in ("FLEETFIT_HOME", "TMPDIR")}


def possible() -> bool:
    """Whether namespaces can be made here: they need root."""
    return os.geteuid() == 0 and shutil.which("ip") is not None and shutil.which("unshare") is not None


def _sweep() -> None:
    """Remove what tests that were killed have left."""
    for name in os.listdir("/run/netns") if os.path.isdir("/run/netns") else ():
        owner = re.fullmatch(r"ff(\d+)-\w+", name)
        if owner is not None and not os.path.exists(f"/proc/{owner[1]}"):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


class Machine:
    """One machine."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self.namespace = f"{fleet.name}-{number}"
        self.port = f"{fleet.name}v{number}"
        self.switch = fleet.switch
        self.address = f"{fleet.network}.{number + 10}"
        _ip("netns", "add", self.namespace)
        _ip("link", "add", self.port, "netns", fleet.switch, "type", "veth", "peer", "name", "eth0", "netns",
            self.namespace)  # fmt: skip
        _ip("link", "set", self.port, "master", "br0", "up", inside=fleet.switch)
        _ip("addr", "add", f"{self.address}/24", "dev", "eth0", inside=self.namespace)
        _ip("link", "set", "eth0", "up", inside=self.namespace)
        _ip("link", "set", "lo", "up", inside=self.namespace)
        package = str(Path(next(iter(container.__path__))).resolve())
        words = [self.address, "7700", _TEMPORARY, sys.executable, package]
        if fleet.keys is not None:
            environment = " ".join(
                f'"{name}={value}"'
                for name, value in {**os.environ, "HOME": f"/tmp/home-{number}", "PATH": PATH}.items()
                if name in ("HOME", "PATH") or name.startswith(("COVERAGE_", "TF_CPP"))
            )
            words += fleet.keys.server(self.address, 22, more=f"SetEnv {environment}")
        self.log = fleet.folder / f"{self.namespace}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", self.namespace, "unshare", "--mount", "--uts", sys.executable,
                 str(HERE / "machine.py"), *words],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
                env=plain_environment(),
            )  # fmt: skip
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(fleet.token.encode() + b"\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == b"ready\n", self.log.read_text()

    def to_dict(self, fleet: Fleet) -> dict[str, object]:
        """What the provider has to know."""
        return {
            "address": self.address,
            "port": 7700,
            "token": fleet.token,
            "caller": f"{fleet.network}.1",
            "lock": str(fleet.folder / f"{self.namespace}.lock"),
        }

    def cut(self) -> None:
        """Drop its link."""
        _ip("link", "set", self.port, "down", inside=self.switch)

    def mend(self) -> None:
        """Have its link again."""
        _ip("link", "set", self.port, "up", inside=self.switch)

    def processes(self) -> list[str]:
        """What runs on it, but for what ran from its start."""
        return [f"{pid} {_words(str(pid))}" for pid in self.pids()]

    def pids(self) -> list[int]:
        """The processes of :meth:`processes`."""
        own = os.stat(f"/run/netns/{self.namespace}").st_ino
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.stat(f"/proc/{pid}/ns/net").st_ino == own:
                    words = _words(pid)
                    daemon = "machine.py" in words or " -D -e -f " in words or words.startswith("slurmd -D")
                    if words and not daemon:
                        found.append(int(pid))
            except OSError:
                continue
        return found

    def has(self, job_name: str, host: str) -> bool:
        """Whether a host of a job trains on it: which one comes to which machine is not said."""
        place = f"{job_name}/hosts/{host}/".encode()
        for pid in self.pids():
            with contextlib.suppress(OSError):
                if place in Path(f"/proc/{pid}/environ").read_bytes():
                    return True
        return False

    @property
    def temporary(self) -> Path:
        """Its folder for temporary files, from here."""
        pid = next(
            pid
            for pid in filter(str.isdigit, os.listdir("/proc"))
            if "machine.py" in _words(pid) and self.address in _words(pid).split() and "unshare" not in _words(pid)
        )
        return Path(f"/proc/{pid}/root/tmp")

    def files(self, pattern: str) -> list[str]:
        """What is in its folder for temporary files, and is its own."""
        return [str(path) for path in _own(self.temporary) if path.match(pattern)]

    def tidy(self) -> None:
        """Remove what is there, and is its own."""
        for path in reversed(list(_own(self.temporary))):
            with contextlib.suppress(OSError):  # gone meanwhile, or a folder in which the checkout is bound
                if path.is_dir() and not path.is_symlink():
                    path.rmdir()
                else:
                    path.unlink()

    def close(self) -> None:
        """End it with everything on it."""
        for pid in self.pids():
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                continue
        self.process.kill()
        self.process.wait()
        _ip("netns", "del", self.namespace)


def _own(top: Path) -> Iterator[Path]:
    """What is below a folder, folders before what is in them; nothing of what is mounted there."""
    device = top.stat().st_dev
    for folder, folders, files in os.walk(top):
        folders[:] = [name for name in folders if _device(os.path.join(folder, name)) == device]
        yield from (Path(folder, name) for name in (*folders, *files))


def _device(path: str) -> int | None:
    try:
        return os.lstat(path).st_dev
    except OSError:
        return None


def _words(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


class Fleet:
    """Machines on one switch.

    Args:
        count: How many.
    """

    def __init__(self, count: int) -> None:
        number = os.getpid() % (64 * 256)
        _sweep()
        self.name = f"ff{os.getpid()}"
        self.network = f"10.{64 + number // 256}.{number % 256}"
        self.switch = f"{self.name}-sw"
        self.token = secrets.token_hex(16)
        self.folder = Path(tempfile.mkdtemp(prefix="fleet-", dir="/run"))
        self.marks = self.folder / "marks"
        self.marks.mkdir()
        _ip("netns", "add", self.switch)
        _ip("link", "add", "br0", "type", "bridge", inside=self.switch)
        _ip("link", "set", "br0", "up", inside=self.switch)
        _ip("link", "add", f"{self.name}c", "type", "veth", "peer", "name", "caller", "netns", self.switch)
        _ip("link", "set", "caller", "master", "br0", "up", inside=self.switch)
        _ip("addr", "add", f"{self.network}.1/24", "dev", f"{self.name}c")
        _ip("link", "set", f"{self.name}c", "up")
        #: How ssh gets into them; None where there is no sshd.
        self.keys = sshd.Keys(self.folder / "ssh") if sshd.find() is not None else None
        self.machines = [Machine(self, number) for number in range(count)]
        self.file = self.folder / "fleet.json"
        self.describe()

    def describe(self, machines: list[Machine] | None = None) -> None:
        """Write which machines the backend may use."""
        chosen = self.machines if machines is None else machines
        text = json.dumps([machine.to_dict(self) for machine in chosen])
        self.file.write_text(text, encoding="utf-8")
        self.file.chmod(0o600)

    def close(self) -> None:
        """Remove everything."""
        for machine in self.machines:
            machine.close()
        subprocess.run(["ip", "link", "del", f"{self.name}c"], check=False, capture_output=True)
        _ip("netns", "del", self.switch)
        shutil.rmtree(self.folder, ignore_errors=True)
