"""A Ray cluster for tests: the raylets of several nodes on this machine, as Ray's own tests have them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fleet as fleets

#: Nodes beside the head's, and the cores that each says it has.
NODES, CORES = 3, 8
#: By which the processes of a cluster are known, also those that its actors have started.
MARK = "FLEETFIT_TEST_RAY"


class Cluster:
    """The cluster: a head and further nodes, each with its raylet.

    Args:
        nodes: How many further ones.
        jobs_api: Whether its head has Ray's Jobs API.
        resources: What each has beside its cores.

    Attributes:
        address: Where it is joined.
        jobs_address: Where its Jobs API is.
        nodes: The further nodes.
    """

    def __init__(self, nodes: int = NODES, *, jobs_api: bool = False, **resources: float) -> None:
        from ray.cluster_utils import Cluster as Nodes

        self.folder = Path(tempfile.mkdtemp(prefix="fr-", dir="/tmp"))  # sockets are in it, whose paths are short
        (self.folder / "ray").mkdir()
        (self.folder / "env").symlink_to(sys.prefix)
        self._python = str(self.folder / "env" / "bin" / Path(sys.executable).name)
        with self._environment():
            head = {"num_cpus": CORES, "resources": resources, "include_dashboard": jobs_api}
            if jobs_api:
                # Any that are free: another cluster of this machine may have those that Ray takes by default, and an
                # agent that does not get its port goes on without the Jobs API.
                head |= {"dashboard_port": 0, "dashboard_agent_listen_port": 0}
            self._cluster = Nodes(initialize_head=True, head_node_args=head)
            self.address: str = self._cluster.address
            self.jobs_address = f"http://{self._cluster.head_node.webui_url}" if jobs_api else ""
        self.nodes: list[Any] = []
        for _ in range(nodes):
            self.add(resources=resources)
        self.wait()

    def add(self, **more: Any) -> Any:
        """Add a node; it is there in a moment."""
        with self._environment():
            node = self._cluster.add_node(wait=False, **{"num_cpus": CORES, **more})
        self.nodes.append(node)
        return node

    def wait(self) -> None:
        """Wait until Ray knows all nodes, and of those that are gone that they are."""
        self._cluster.wait_for_nodes()

    def kill(self, node: Any) -> None:
        """SIGKILL to a node's raylet."""
        self._cluster.remove_node(node, allow_graceful=False)
        if node in self.nodes:
            self.nodes.remove(node)

    def drain(self, node: Any, seconds: int) -> None:
        """Announce that a node will be taken in so many seconds, as the autoscaler does for a spot machine."""
        words = ["--address", self.address, "--node-id", node.node_id, "--reason", "DRAIN_NODE_REASON_PREEMPTION"]
        words += ["--reason-message", "a test", "--deadline-remaining-seconds", str(seconds)]
        ray = Path(sys.executable).with_name("ray")
        subprocess.run([ray, "drain-node", *words], check=True, capture_output=True, timeout=60)

    def busy(self) -> list[Any]:
        """The further nodes on which a host of a job is."""
        found = []
        for node in self.nodes:
            [raylet] = node.all_processes["raylet"]
            children = Path(f"/proc/{raylet.process.pid}/task/{raylet.process.pid}/children").read_text().split()
            words = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children]
            if any(word.startswith(b"ray::HostActor") for word in words):
                found.append(node)
        return found

    def recover(self) -> None:
        """Have as many nodes again as in the beginning."""
        while len(self.nodes) < NODES:
            self._cluster._wait_for_node(self.add())  # what was killed Ray may still take for alive

    def pids(self) -> list[int]:
        """The processes that agents have started, and the agents."""
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                environ = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
                ours = f"{MARK}={os.getpid()}".encode() in environ
                if ours and (b"--lifeline" in words or any(item.startswith(b"FLEETFIT_JOB=") for item in environ)):
                    found.append(int(name))
        return found

    @contextlib.contextmanager
    def _environment(self) -> Iterator[None]:
        """What the cluster's processes have of a test's environment: no folders of its, a mark, and its Python.

        The file by which everybody's ``ray.init()`` finds a cluster of this machine is in the folder, too.
        """
        before, python, handler = dict(os.environ), sys.executable, signal.getsignal(signal.SIGTERM)
        sys.executable = self._python
        for name in ("FLEETFIT_HOME", "TMPDIR"):
            os.environ.pop(name, None)
        mark = {MARK: str(os.getpid()), "RAY_TMPDIR": str(self.folder), "RAY_USAGE_STATS_ENABLED": "0"}
        # Workers that are started for jobs that may come cost more than they save here.
        os.environ.update({**mark, "RAY_prestart_worker_first_driver": "0", "RAY_enable_worker_prestart": "0"})
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, handler)  # Ray's would end this process
            sys.executable = python
            os.environ.clear()
            os.environ.update(before)

    def close(self) -> None:
        """End everything."""
        with self._environment():
            self._cluster.shutdown()
        shutil.rmtree(self.folder, ignore_errors=True)


def asks(address: str, program: str) -> str:
    """What a driver of its own on a cluster prints, without what Ray prints there about lost nodes."""
    text = f"import ray\nray.init({address!r}, log_to_driver=False, logging_level='ERROR')\n"
    text += "from functools import partial\nprint = partial(print, 'said:')\n"
    done = subprocess.run(
        [sys.executable, "-c", text + textwrap.dedent(program)], check=True, capture_output=True, text=True, timeout=60
    )
    return "\n".join(line.removeprefix("said: ") for line in done.stdout.splitlines() if line.startswith("said: "))


#: What a cluster's file must have, and what is of no use for nodes of one machine.
_UNUSED: dict[str, Any] = {
    "auth": {},
    "file_mounts": {},
    "file_mounts_sync_continuously": False,
    "initialization_commands": [],
    "setup_commands": [],
    "head_setup_commands": [],
    "worker_setup_commands": [],
    "head_start_ray_commands": [],
    "worker_start_ray_commands": [],
    "cluster_synced_files": [],
    "rsync_exclude": [],
    "rsync_filter": [],
}
#: By which Ray's provider for tests knows the head.
_HEAD = "fffffffffffffffffffffffffffffffffffffffffffffffffff00000"


class Autoscaled:
    """A cluster of a head of one core that Ray's autoscaler gives nodes when they are asked for, and takes them.

    Ray's own class for such clusters ends every Ray of the machine, so this one is started as ``ray up`` would.

    Args:
        most: How many nodes it may have.
        cores: Of each.
        idle_s: After how many seconds without use the autoscaler takes a node.

    Attributes:
        address: Where it is joined.
    """

    def __init__(self, most: int, cores: int, idle_s: float) -> None:
        from ray.util import get_node_ip_address

        self._folder = Path(tempfile.mkdtemp(prefix="fr-", dir="/tmp"))
        with socket.create_server(("", 0)) as server:
            port = server.getsockname()[1]
        self.address = f"{get_node_ip_address()}:{port}"
        config = {
            **_UNUSED,
            "cluster_name": "test",
            "max_workers": most,
            "idle_timeout_minutes": idle_s / 60,
            "upscaling_speed": 10,
            "provider": {"type": "fake_multinode", "gcs_address": self.address, "head_node_id": _HEAD,
                         "launch_multiple": True, "disable_node_updaters": True,
                         "use_node_id_as_ip": True,  # all nodes have one address: by it none would be known as idle
                         "disable_launch_config_check": True},
            "head_node_type": "ray.head.default",
            "available_node_types": {
                "ray.head.default": {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 0},
                "worker": {"resources": {"CPU": cores, "object_store_memory": 80 << 20}, "node_config": {},
                           "min_workers": 0, "max_workers": most},
            },
        }  # fmt: skip
        file = self._folder / "cluster.json"
        file.write_text(json.dumps(config))
        (self._folder / "ray").mkdir()
        environment = fleets.plain_environment()
        self._mark = f"{MARK}={self._folder.name}"
        environment |= {MARK: self._folder.name, "RAY_TMPDIR": str(self._folder), "RAY_USAGE_STATS_ENABLED": "0"}
        environment |= {"RAY_FAKE_CLUSTER": "1", "RAY_OVERRIDE_NODE_ID_FOR_TESTING": _HEAD}
        # `ray start` asks for a token where a `ray.init()` of this user has left one, which drivers do not send.
        environment |= {"AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_AUTH_MODE": "disabled"}
        words = [f"--port={port}", f"--autoscaling-config={file}", "--num-cpus=1", "--include-dashboard=false"]
        subprocess.run(
            [Path(sys.executable).with_name("ray"), "start", "--head", *words],
            env=environment, check=True, capture_output=True, timeout=120,
        )  # fmt: skip

    def close(self) -> None:
        """End everything."""
        while pids := [name for name in filter(str.isdigit, os.listdir("/proc")) if self._is_ours(name)]:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _is_ours(self, pid: str) -> bool:
        try:  # of a zombie it is empty
            return self._mark.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False
