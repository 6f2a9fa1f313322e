"""A Ray cluster for tests: the raylets of several nodes on this machine, as Ray's own tests have them."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: Nodes beside the head's, and the cores that each says it has.
NODES, CORES = 3, 8
#: By which the processes of a cluster are known, also those that its actors have started.
MARK = "FLEETFIT_TEST_RAY"


class Cluster:
    """The cluster: a head and further nodes, each with its raylet.

    Args:
        nodes: How many further ones.
        resources: What each has beside its cores.

    Attributes:
        address: Where it is joined.
        nodes: The further nodes.
    """

    def __init__(self, nodes: int = NODES, **resources: float) -> None:
        from ray.cluster_utils import Cluster as Nodes

        self._folder = Path(tempfile.mkdtemp(prefix="fr-", dir="/tmp"))  # sockets are in it, whose paths are short
        (self._folder / "ray").mkdir()
        with self._environment():
            head = {"num_cpus": CORES, "resources": resources, "include_dashboard": False}
            self._cluster = Nodes(initialize_head=True, head_node_args=head)
            self.address: str = self._cluster.address
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
        """What the cluster's processes have of a test's environment: no folders of its, and a mark.

        The file by which everybody's ``ray.init()`` finds a cluster of this machine is in the folder, too.
        """
        before = dict(os.environ)
        for name in ("FLEETFIT_HOME", "TMPDIR"):
            os.environ.pop(name, None)
        mark = {MARK: str(os.getpid()), "RAY_TMPDIR": str(self._folder), "RAY_USAGE_STATS_ENABLED": "0"}
        # Workers that are started for jobs that may come cost more than they save here.
        os.environ.update({**mark, "RAY_prestart_worker_first_driver": "0", "RAY_enable_worker_prestart": "0"})
        yield
        os.environ.clear()
        os.environ.update(before)

    def close(self) -> None:
        """End everything."""
        with self._environment():
            self._cluster.shutdown()
        shutil.rmtree(self._folder, ignore_errors=True)


_shared: list[Cluster] = []


@contextlib.contextmanager
def shared() -> Iterator[Cluster]:
    """The one cluster of this process: several folders of tests have a fixture of it."""
    cluster = _shared[-1] if _shared else Cluster()
    _shared.append(cluster)
    yield cluster
    _shared.pop()
    if not _shared:
        cluster.close()
