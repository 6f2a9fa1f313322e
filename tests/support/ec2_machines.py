"""The machines behind EC2's API: for each instance that moto runs one of this machine's network namespaces, with sshd.

A terminated instance's machine is killed, and one that shuts itself down is terminated, as EC2 does it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import fleet as fleets
from ec2_server import Ec2Server, backend_of_region
from fleet import _ip

PROGRAM = Path(__file__).resolve().parent / "machines" / "instance.py"


class Instance:
    """A machine that runs, as :class:`fleet.Machine` is one.

    Args:
        machines: Its region.
        name: The instance's id.
    """

    def __init__(self, machines: Machines, name: str) -> None:
        self.name = name
        self.namespace = machines._running[name][1]
        self._machines = machines

    def processes(self) -> list[str]:
        """What runs on it, but for what ran from its start."""
        return [f"{pid} {fleets._words(str(pid))}" for pid in self.pids()]

    def pids(self) -> list[int]:
        """The processes of :meth:`processes`."""
        found = []
        for pid in self._machines.processes(self.name):
            words = fleets._words(str(pid))
            if words and "instance.py" not in words and " -D -e -f " not in words:
                found.append(pid)
        return found

    @property
    def temporary(self) -> Path:
        """Its folder for temporary files, from here."""
        first = next(
            pid
            for pid in self._machines.processes(self.name)
            if "instance.py" in (words := fleets._words(str(pid))) and "unshare" not in words
        )
        return Path(f"/proc/{first}/root/tmp")

    def cut(self) -> None:
        """Drop its link."""
        _ip("link", "set", "eth0", "down", inside=self.namespace)

    def mend(self) -> None:
        """Have its link again, if it still runs."""
        with contextlib.suppress(AssertionError):
            _ip("link", "set", "eth0", "up", inside=self.namespace)


class Machines:
    """A region with machines.

    Attributes:
        server: The API.
        boots: How the next instances boot, in order: ``ok``, ``silent`` (nobody answers there), ``dies``.
        folder: A folder that all machines see.
    """

    def __init__(self) -> None:
        number = os.getpid() % (64 * 256)
        fleets._sweep()
        self.name = f"ff{os.getpid()}"
        self.network = f"10.{128 + number // 256}.{number % 256}"
        self.switch = f"{self.name}-es"
        self.folder = Path(tempfile.mkdtemp(prefix="fleetfit-ec2-", dir="/var/tmp"))
        self.boots: list[str] = []
        self._running: dict[str, tuple[subprocess.Popen[bytes], str]] = {}
        self._ended: set[str] = set()
        self.failed = ""
        self._count = 0
        self._caller = f"{self.name}e"
        _ip("netns", "add", self.switch)
        _ip("link", "add", "br0", "type", "bridge", inside=self.switch)
        _ip("link", "set", "br0", "up", inside=self.switch)
        _ip("link", "add", self._caller, "type", "veth", "peer", "name", "caller", "netns", self.switch)
        _ip("link", "set", "caller", "master", "br0", "up", inside=self.switch)
        _ip("addr", "add", f"{self.network}.1/24", "dev", self._caller)
        _ip("link", "set", self._caller, "up")
        self.server = Ec2Server(f"{self.network}.0")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    @property
    def options(self) -> dict[str, Any]:
        """``backend_options`` of jobs there."""
        return {
            "subnets": list(self.server.subnets.values()),
            "ami": "/fleetfit/image",
            "user": "root",
            "reach": "private",
            "ssh_from": [f"{self.network}.1/32"],
            "python": sys.executable,
            "on_demand_price": 0.1,
            "poll": 0.2,
        }

    def alive(self) -> list[str]:
        """The instances whose machines run."""
        assert not self.failed, self.failed
        return [name for name, (process, _) in list(self._running.items()) if process.poll() is None]

    def machines(self) -> list[Instance]:
        """The machines that run."""
        return [Instance(self, name) for name in self.alive()]

    def interrupt(self, instance: str, action: dict[str, str] | None = None) -> None:
        """Give an instance the notice of its interruption."""
        self._tell(instance, {"/latest/meta-data/spot/instance-action": json.dumps(action or {"action": "terminate"})})

    def recommend(self, instance: str) -> None:
        """Tell an instance that it may be interrupted."""
        self._tell(instance, {"/latest/meta-data/events/recommendations/rebalance": "{}"})

    def _tell(self, instance: str, documents: dict[str, str]) -> None:
        new = self.folder / f".{instance}"
        new.write_text(json.dumps(documents))
        new.rename(self.folder / f"{instance}.imds.json")

    def processes(self, instance: str) -> list[int]:
        """What runs on an instance."""
        own = os.stat(f"/run/netns/{self._running[instance][1]}").st_ino
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.stat(f"/proc/{pid}/ns/net").st_ino == own:
                    found.append(int(pid))
            except OSError:
                continue
        return found

    # --- what EC2 does ---

    def _watch(self) -> None:
        while not self._over.wait(0.05) and not self.failed:
            try:
                self._look()
            except Exception as error:  # the tests see it
                self.failed = f"{type(error).__name__}: {error}"
                raise

    def _look(self) -> None:
        for one in self.server.instances:
            if one.state == "running" and one.id not in self._running and one.id not in self._ended:
                self._boot(one)
        states = {one.id: one.state for one in self.server.instances}
        for name, (process, namespace) in list(self._running.items()):
            if process.poll() is not None and states.get(name) == "running":
                self.server.end(name)
            elif process.poll() is None and states.get(name) != "running":
                process.kill()
            if process.poll() is not None:
                self._end(name, process, namespace)

    def _boot(self, one: Any) -> None:
        self._count += 1
        namespace, port = f"{self.name}-e{self._count}", f"{self.name}w{self._count}"
        address = str(one.private_ip)
        _ip("netns", "add", namespace)
        _ip("link", "add", port, "netns", self.switch, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _ip("link", "set", port, "master", "br0", "up", inside=self.switch)
        _ip("addr", "add", f"{address}/24", "dev", "eth0", inside=namespace)
        _ip("link", "set", "eth0", "up", inside=namespace)
        _ip("link", "set", "lo", "up", inside=namespace)
        _ip("addr", "add", "169.254.169.254/32", "dev", "lo", inside=namespace)
        # An address that an ended instance had: what is sent there would go to its card for half a minute.
        for near in (None, *(other for _, other in self._running.values())):
            device = self._caller if near is None else "eth0"
            _ip("neigh", "flush", "to", address, "dev", device, inside=near)
        pair = backend_of_region().key_pairs.get(one.key_name)  # its fleet may be removed already
        login = pair.material_public if pair is not None else ""
        variables = {name: value for name, value in os.environ.items() if name.startswith(("COVERAGE_", "TF_CPP"))}
        settings = {
            "address": address,
            "user_data": one.user_data.decode(),
            "login": login.decode() if isinstance(login, bytes) else login,
            "hidden": tempfile.gettempdir(),
            "boot": self.boots.pop(0) if self.boots else "ok",
            "environment": {**variables, "HOME": "/tmp/home"},
        }
        (self.folder / f"{one.id}.json").write_text(json.dumps(settings))
        words = ["ip", "netns", "exec", namespace, "unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child"]
        with (self.folder / f"{one.id}.log").open("wb") as log:
            process = subprocess.Popen(
                [*words, sys.executable, str(PROGRAM), str(self.folder), one.id],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_with_us,
            )
        self._running[one.id] = process, namespace

    def _end(self, name: str, process: subprocess.Popen[bytes], namespace: str) -> None:
        process.wait()
        del self._running[name]
        self._ended.add(name)
        subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True)

    def removers(self) -> list[int]:
        """The processes that remove fleets here."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                place = Path("/proc", pid)
                ours = self.server.url.encode() in (place / "environ").read_bytes()
                if ours and b"ec2.leftovers" in (place / "cmdline").read_bytes():
                    found.append(int(pid))
        return found

    def reset(self) -> None:
        """End all instances, and forget everything."""
        for one in self.server.instances:
            if one.state == "running":
                self.server.end(one.id)
        while self._running and not self.failed:
            self._over.wait(0.02)
        self.boots.clear()
        self.server.reset()

    def close(self) -> None:
        """Remove everything."""
        self.reset()
        self._over.set()
        self._thread.join()
        self.server.close()
        subprocess.run(["ip", "link", "del", self._caller], check=False, capture_output=True)
        _ip("netns", "del", self.switch)
        shutil.rmtree(self.folder, ignore_errors=True)


def _with_us() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
