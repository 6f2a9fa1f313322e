"""Machines that need no root: an sshd each, on a loopback address, with a host name and a home of its own.

For a notebook that shows a fleet on one computer. Unlike those of :mod:`fleet` they share its network and its files.
The kernel must allow user namespaces.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import sshd

#: Runs in the namespaces: the name, also for those who look for its address, and then the server.
_INSIDE = 'hostname "$0" && mount --bind "$1" /etc/hosts && shift && exec "$@"'


class Machine(sshd.Server):
    """One machine.

    Args:
        keys: Its fleet's.
        number: Which one it is.
    """

    def __init__(self, keys: sshd.Keys, number: int) -> None:
        self.name = f"machine-{number}"
        self._home = keys.folder / f"home-{number}"
        self._home.mkdir()
        path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
        super().__init__(keys, f"127.0.0.{number + 10}", more=f'SetEnv HOME="{self._home}" PATH="{path}"')

    def start(self) -> None:
        """See :meth:`sshd.Server.start`."""
        self.log = self._keys.folder / f"log-{self.name}"
        hosts = self._home / ".hosts"
        hosts.write_text(f"127.0.0.1 localhost\n{self.address} {self.name}\n")
        server = self._keys.server(self.address, self.port, more=self._more)
        outside, user, group = ["unshare", "--mount", "--uts"], os.getuid(), os.getgid()
        if user != 0:  # root inside, to set the name; then oneself again, as sshd needs more than one user otherwise
            outside += ["--user", "--map-root-user"]
            server = ["unshare", "--user", f"--map-user={user}", f"--map-group={group}", *server]
        words = [*outside, "sh", "-c", _INSIDE, self.name, str(hosts), *server]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=log, start_new_session=True)
        sshd.await_server(self.address, self.port, self.process, self.log)
        self._namespace = os.stat(f"/proc/{self.process.pid}/ns/uts").st_ino

    def pids(self) -> list[int]:
        """What runs on it, but for its sshd."""
        found = []
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            try:
                if os.stat(f"/proc/{pid}/ns/uts").st_ino == self._namespace and b"sshd" not in _words(pid):
                    found.append(pid)
            except OSError:
                continue
        return found

    def close(self) -> None:
        """End it with everything on it."""
        while pids := self.pids():
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.01)
        super().close()


class Fleet:
    """Machines, and how ssh gets to them.

    Args:
        count: How many.

    Attributes:
        machines: The machines.
        ssh_config: A configuration for ssh.
        folder: A folder that all of them see.
    """

    def __init__(self, count: int) -> None:
        if sshd.find() is None:
            raise RuntimeError("sshd was not found: install OpenSSH's server, such as by `apt install openssh-server`.")
        self.folder = Path(tempfile.mkdtemp(prefix="fleet-"))
        self.machines: list[Machine] = []
        try:
            keys = sshd.Keys(self.folder / "ssh")
            for number in range(1, count + 1):
                self.machines.append(Machine(keys, number))
        except BaseException:
            self.close()
            raise
        places = (f"Host {machine.address}\n  Port {machine.port}" for machine in self.machines)
        self.ssh_config = keys.client(*places)

    def close(self) -> None:
        """End them, and remove their files."""
        for machine in self.machines:
            machine.close()
        shutil.rmtree(self.folder)


def _words(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
