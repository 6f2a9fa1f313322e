"""A Slurm cluster for tests: munged, slurmctld, and one slurmd on each machine of a fleet.

Nodes are machines of :mod:`fleet`: they have addresses, host names and folders for temporary files of their own. The
cluster has its own key, ports and configuration (``$SLURM_CONF``), so that several run beside each other and beside a
Slurm that this machine may be part of.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess

import fleet as fleets
from waiting import until

#: What has to be installed.
PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "setpriv", "nsenter")

_CONFIGURATION = """
ClusterName=fleetfit
SlurmctldHost={controller}({address})
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdPort=6818
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout=10
InactiveLimit=0
KillWait=5
MinJobAge=30
SchedulerParameters=sched_min_interval=0,sched_interval=1,bf_interval=1,batch_sched_delay=0
SlurmctldDebug=info
SlurmdDebug=info
{nodes}
PartitionName=train Nodes=ALL Default=YES MaxTime=UNLIMITED State=UP PriorityTier=1 GraceTime=20
PartitionName=urgent Nodes=ALL MaxTime=UNLIMITED State=UP PriorityTier=10
PartitionName=short Nodes={first} MaxTime=5 MaxNodes=1 State=UP PriorityTier=1
PartitionName=closed Nodes={first} State=DOWN
"""


def possible() -> bool:
    """Whether a cluster can run here: it needs root and Debian's slurm-wlm."""
    return fleets.possible() and all(shutil.which(name) is not None for name in PROGRAMS)


class Node:
    """One node.

    Args:
        cluster: Its cluster.
        machine: The machine that it is.
        name: What Slurm calls it.
    """

    def __init__(self, cluster: Cluster, machine: fleets.Machine, name: str) -> None:
        self.cluster = cluster
        self.machine = machine
        self.name = name
        self.daemon: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start its slurmd."""
        (self.cluster.folder / f"spool-{self.name}").mkdir(exist_ok=True)
        pid = str(self.machine.process.pid)
        self.daemon = self.cluster.start_daemon(
            ["nsenter", "--target", pid, "--net", "--mount", "--uts", "slurmd", "-D", "-N", self.name, "-f",
             str(self.cluster.configuration)]
        )  # fmt: skip

    def kill(self) -> None:
        """SIGKILL to its slurmd; what runs there goes on."""
        assert self.daemon is not None
        self.daemon.kill()
        self.daemon.wait()

    @property
    def state(self) -> str:
        """What Slurm says of it: ``idle``, ``mixed``, ``down*``."""
        return self.cluster.ask("sinfo", "-h", "-n", self.name, "-o", "%T").split("\n")[0]


class Cluster:
    """The cluster.

    Args:
        fleet: The machines of its nodes.
    """

    def __init__(self, fleet: fleets.Fleet) -> None:
        self.fleet = fleet
        self.folder = fleet.folder / "slurm"
        self.folder.mkdir()
        (self.folder / "state").mkdir()
        self.configuration = self.folder / "slurm.conf"
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.nodes = [Node(self, machine, f"n{number}") for number, machine in enumerate(fleet.machines, 1)]
        address = f"{fleet.network}.1"
        with socket.create_server(("", 0)) as server:  # slurmctld listens at all addresses
            port = server.getsockname()[1]
        lines = [
            f"NodeName={node.name} NodeAddr={node.machine.address} "
            f"NodeHostname=machine-{node.machine.address.rpartition('.')[2]} CPUs=8 RealMemory=1000 State=UNKNOWN"
            for node in self.nodes
        ]
        self.configuration.write_text(
            _CONFIGURATION.format(
                controller=socket.gethostname(),
                address=address,
                port=port,
                folder=self.folder,
                nodes="\n".join(lines),
                first=self.nodes[0].name,
            )
        )
        # Nothing uses cgroups here; without a version named slurmd would look for one, and not begin without.
        self.configuration.with_name("cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(64))
        key.chmod(0o600)
        place = [f"--{name}={self.folder}/munge.{name.split('-')[0]}" for name in ("socket", "pid-file", "log-file")]
        self.start_daemon(
            ["munged", "--foreground", "--force", f"--key-file={key}", f"--seed-file={self.folder}/munge.seed",
             "--num-threads=2", *place]
        )  # fmt: skip
        until(lambda: (self.folder / "munge.socket").exists())
        self.start_controller()
        for node in self.nodes:
            node.start()
        until(lambda: all(node.state == "idle" for node in self.nodes), say=self.logs)

    def start_controller(self) -> None:
        """Start slurmctld."""
        self.controller = self.start_daemon(["slurmctld", "-D", "-f", str(self.configuration)])

    def start_daemon(self, argv: list[str]) -> subprocess.Popen[bytes]:
        """Start a program that ends with the tests."""
        with (self.folder / "daemons.log").open("ab") as log:
            daemon = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *argv],
                env={**fleets.plain_environment(), **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._daemons.append(daemon)
        return daemon

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which Slurm's commands find the cluster."""
        return {"SLURM_CONF": str(self.configuration)}

    def ask(self, *argv: str) -> str:
        """Run one of Slurm's commands, and return what it prints."""
        done = subprocess.run(
            argv, env={**os.environ, **self.environment}, check=False, capture_output=True, text=True, timeout=30
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    def queue(self) -> list[str]:
        """Return what is in the queue: one line of id, state and name for each job."""
        return self.ask("squeue", "-h", "-t", "PD,R,CF,CG,S,ST", "-o", "%i %T %j").splitlines()

    def logs(self) -> str:
        """Return what the daemons have said."""
        return "\n".join(f"== {path.name}\n{path.read_text()[-2000:]}" for path in sorted(self.folder.glob("*.log")))

    def recover(self) -> None:
        """Have every node take jobs again, and the queue empty."""
        self.ask("scancel", "--user=root", "--hurry")
        for node in self.nodes:
            node.machine.mend()
            if node.state not in ("idle", "mixed", "allocated", "completing"):  # it registers as it starts
                node.kill()
                self.ask("scontrol", "update", f"nodename={node.name}", "state=resume")
            if node.daemon is None or node.daemon.poll() is not None:
                node.start()
        until(lambda: not self.queue() and all(node.state == "idle" for node in self.nodes), say=self.logs)

    def close(self) -> None:
        """End everything."""
        for daemon in reversed(self._daemons):
            with contextlib.suppress(ProcessLookupError):
                daemon.kill()
            daemon.wait()
