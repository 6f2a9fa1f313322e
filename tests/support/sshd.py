"""Real sshd, with a key to log in with, for tests: on a loopback address, or wherever its command line is run."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest


def find() -> str | None:
    """sshd's path, if there is one."""
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def program() -> str:
    """sshd's path; without one the test is skipped."""
    found = find()
    if found is None:
        pytest.skip("openssh-server is not installed")
    return found


def key(path: Path) -> Path:
    """A new key pair: ``path`` and ``path.pub``."""
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)]
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
    return path


class Keys:
    """What all servers of a fleet share: a folder with the key that they accept.

    Args:
        folder: Where the files are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.user = key(folder / "id")

    def server(self, address: str, port: int, *, name: str = "", more: str = "") -> list[str]:
        """Configure a server and return its command line.

        Args:
            address: Where it listens.
            port: Its port.
            name: What its files are called.
            more: More lines of its configuration.
        """
        name = name or f"{address}-{port}"
        host_key = self.folder / f"host-{name}"
        if not host_key.exists():
            key(host_key)
        config = self.folder / f"sshd-{name}.conf"
        config.write_text(
            f"""{more}
ListenAddress {address}
Port {port}
HostKey {host_key}
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
AuthorizedKeysFile {self.user}.pub
PermitUserEnvironment no
MaxStartups 100
PrintMotd no
Subsystem sftp internal-sftp
""",
            encoding="utf-8",
        )
        if os.geteuid() == 0:  # where it parts with its privileges
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
        return [program(), "-D", "-e", "-f", str(config)]

    def client(self, *lines: str) -> Path:
        """Write a configuration for ssh, which logs in with the key."""
        config = self.folder / "config"
        own = ["Host *", f"  IdentityFile {self.user}", "  IdentitiesOnly yes", f"  User {getpass.getuser()}"]
        config.write_text("\n".join([*lines, *own]) + "\n", encoding="utf-8")
        return config


class Server:
    """A server of this machine.

    Args:
        keys: Its fleet's.
        address: A loopback address.
        more: More lines of its configuration; these come first.
    """

    def __init__(self, keys: Keys, address: str = "127.0.0.1", *, more: str = "") -> None:
        self.address = address
        self.port = free_port(address)
        self._keys, self._more = keys, more
        self.start()

    def start(self) -> None:
        """Start it and wait until it listens."""
        self.log = self._keys.folder / f"log-{self.address}-{self.port}"
        with self.log.open("ab") as log:
            argv = self._keys.server(self.address, self.port, more=self._more)
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=log, start_new_session=True)
        await_server(self.address, self.port, self.process, self.log)

    def children(self) -> list[int]:
        """The processes of its logins."""
        text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in text.split()]

    def close(self) -> None:
        """End it with its logins."""
        for pid in [*self.children(), self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def free_port(address: str) -> int:
    """A port that nobody listens at."""
    with socket.create_server((address, 0)) as server:
        return int(server.getsockname()[1])


def await_server(address: str, port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a server answers; its end before is a failure."""
    while True:
        assert process.poll() is None, log.read_text()
        try:
            socket.create_connection((address, port), timeout=1).close()
        except ConnectionRefusedError:
            time.sleep(0.01)
        else:
            return
