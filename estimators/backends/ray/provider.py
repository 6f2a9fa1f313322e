"""The provider: a placement group of a Ray cluster, and on each host's node an actor that holds its place."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from container.contract.strategies import Elastic
from container.system.loop import Loop
from estimators.backends.hosts.arriving import ArrivingProvider, Event, ExpectedHost, Failed, Ready
from estimators.backends.hosts.membership import MembershipListener, MembershipSource, News
from estimators.backends.hosts.provider import Finding, Placement
from estimators.backends.ray import diagnosis
from estimators.backends.ray.options import STRATEGIES, RayOptions
from estimators.job.errors import ConfigurationError
from estimators.job.request import RunOptions, TrainingJobSpec

#: After how long another driver is started where one was killed, in seconds; twice as long each time, up to the other:
#: one that looks for a cluster that is gone takes half a second of a processor.
_AGAIN_S, _AT_LAST_S = 1.0, 30.0
#: How long before Ray takes a node its host is given up, in seconds.
_MARGIN_S = 1.0
#: Variables of a worker of Ray's, which a driver that is started there must not take for its own.
_OF_A_WORKER = ("RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_LD_PRELOAD_ON_WORKERS", "PYTHONBREAKPOINT", "SPT_NOENV")


class RayProvider(ArrivingProvider):
    """Provide hosts on the nodes of a Ray cluster."""

    options: RayOptions
    name: ClassVar[str] = "ray"
    title = "Ray"
    program = Path(__file__).with_name("driver.py")
    # Time, level, process, file.
    logged = re.compile(r"^\[[^\]]* [A-Z] [^\]]*\] (?:\([^)]*\) )?\S+\.\w+:\d+: ", re.MULTILINE)
    why_s = 0.1  # of a worker it comes at once

    def __init__(self, loop: Loop, spec: TrainingJobSpec, options: RunOptions) -> None:
        super().__init__(loop, spec, RayOptions.of(options.backend_options))
        self.group = self.options.placement_group
        self.address = self.options.address
        self._local = False  # whether the cluster was started for this job
        self._places: dict[str, str] = {}  # host -> the node that it is said to have
        self._unplaced: dict[str, ExpectedHost] = {}  # hosts that wait until that is said
        self._nodes: _NodeTable | None = None
        self._follows = False  # whether to ask for the nodes when the cluster was joined

    @classmethod
    def validate(cls, spec: TrainingJobSpec, options: RunOptions) -> list[str]:
        """Refuse options that are wrong, and an environment without Ray; the cluster is asked by the job itself."""
        try:
            given = RayOptions.of(options.backend_options)
        except ConfigurationError as error:
            return [str(error)]
        if isinstance(spec.strategy, Elastic) and spec.strategy.spares and given.follow_nodes:
            return [
                "with follow_nodes, the job has a host on every node, so no node is left for spares. Leave spares out, "
                "or set backend_options={'follow_nodes': False}."
            ]
        reason = diagnosis.refusal()
        return [reason] if reason is not None else []

    @classmethod
    def describe(cls, spec: TrainingJobSpec, options: RunOptions) -> Placement:
        """Say where the job would run."""
        given = RayOptions.of(options.backend_options)
        bundle = given.bundle(_processes(spec))
        amounts = ", ".join(f"{name}: {amount:g}" for name, amount in bundle.items())
        group = f"{spec.instance_count} × {{{amounts}}}, {given.strategy or STRATEGIES[0]}"
        note = f"Ray's placement group: {group}"
        return cls.placement(spec, given, note, cpus=max(1, int(bundle.get("CPU", 1))), gpus=int(bundle.get("GPU", 0)))

    @classmethod
    def found(cls, spec: TrainingJobSpec) -> dict[str, Any] | None:
        """Return the cluster that the caller has joined, and the placement group in which it is a task or an actor."""
        ray = sys.modules.get("ray")
        if ray is None or not ray.is_initialized() or ray.util.client.ray.is_connected():
            return None
        found = {"address": ray.get_runtime_context().gcs_address}
        group = ray.util.get_current_placement_group()
        return {**found, "placement_group": group.id.hex()} if group is not None else found

    def heed(self, found: Mapping[str, Any]) -> None:
        """Run the job where its caller is, unless the options say where."""
        if self.options.address is None and found:
            self.address = found["address"]
            self.group = self.group or found.get("placement_group")

    # --- the program that talks to Ray (:mod:`.driver`) ---

    def environment(self) -> Mapping[str, str]:
        """Return the program's environment, without that of a Ray worker."""
        return {name: value for name, value in os.environ.items() if name not in _OF_A_WORKER}

    def connecting(self) -> dict[str, Any]:
        """Return Ray's own arguments of ``connect``."""
        cpus = max(os.cpu_count() or 1, int(self.bundle.get("CPU", 0) * len(self.spec.hosts) + 0.999))
        return {"address": self.address, "cpus": cpus}

    def connected(self, event: Event) -> None:
        """Note whether the cluster was started for this job, and follow its nodes."""
        self._local = event["started"]
        if self._local:
            self.tell(
                "A Ray cluster was started on this machine for this job: the address is 'local', or RAY_ADDRESS is not "
                "set and no running cluster was found."
            )
        if self._follows:
            self.follow()

    def acquiring(self, group: Sequence[ExpectedHost]) -> dict[str, Any]:
        """Return Ray's own arguments of ``acquire``."""
        options = self.options
        strategy = options.strategy or ("PACK" if self._local else STRATEGIES[0])
        return {
            "bundle": self.bundle,
            "strategy": strategy if len(group) > 1 else "PACK",
            "labels": dict(options.labels),
            "apart": strategy == "STRICT_SPREAD",
            "node": group[0].wish,
            "group": self.group,
            "runtime_env": dict(options.runtime_env),
        }

    def follow(self) -> None:
        """Ask for the nodes that have room for the job's hosts, once the cluster was joined."""
        strategy, connection = self.spec.strategy, self.connection
        assert isinstance(strategy, Elastic)
        self._follows = not connection.joined
        if connection.joined:
            most = strategy.most_hosts(len(self.spec.hosts))
            connection.send(op="follow", most=most, bundle=self.bundle, labels=dict(self.options.labels))

    def told(self, event: Event) -> None:
        """Take the list of nodes."""
        if self._nodes is not None:
            self._nodes.told(event["nodes"])

    def disconnected(self, reason: str) -> None:
        """Let the node table start another program."""
        self._follows = False
        if self._nodes is not None:
            self._nodes.failed(reason)

    def placed(self, host: ExpectedHost) -> None:
        """Refuse mixed placement when all hosts have a node."""
        hosts = self.connection.hosts
        if all(other.place for other in hosts):
            remedy = "set backend_options={'strategy': 'STRICT_SPREAD'} or 'STRICT_PACK'"
            self.refuse_mixed(hosts, [other.place for other in hosts], remedy)

    def told_of(self, host: ExpectedHost, event: Event) -> None:
        """Handle a host's start or preemption notice."""
        if event["event"] == "started":
            host.address = event["ip"]
            host.begin()
        elif event["event"] == "notice" and host.remote is not None:
            host.remote.on_notice(max(0.0, event["seconds"] - _MARGIN_S))

    def arrived(self, host: ExpectedHost) -> None:
        """Begin, if the host's address is known already."""
        if host.address:
            host.begin()

    def where(self, host: ExpectedHost) -> str:
        """Return the prefix of a host's failure reason: its node, if known."""
        return f"node {host.place[:12]}" if host.place else ""

    def lost(self, host: ExpectedHost, reason: str) -> None:
        """Take the host's node out of the table until Ray confirms it."""
        if self._nodes is not None:
            self._nodes.lost(host.place)

    # --- hosts ---

    def acquire(self, name: str, ready: Ready, failed: Failed) -> None:
        """Ask for room; what is asked for at once comes in one placement group, unless the job is elastic."""
        host = ExpectedHost(self, name, ready, failed)
        host.wish = self._places.pop(name, None)
        if self.waits_for_place and host.wish is None:
            self._unplaced[name] = host
        else:
            self.submit(host)

    def locate(self, name: str, place: str) -> None:
        """Say which node is to be a host's."""
        host = self._unplaced.pop(name, None)
        if host is None:
            self._places[name] = place
        else:
            host.wish = place
            self.submit(host)

    def membership(self) -> MembershipSource | None:
        """Return the cluster's table of nodes, as far as an elastic job may have them."""
        if not self.follows:
            return None
        self._nodes = _NodeTable(self)
        return self._nodes

    @property
    def follows(self) -> bool:
        """Whether the cluster's nodes decide which hosts an elastic job has."""
        return self.elastic and self.options.follow_nodes and self.group is None

    @property
    def waits_for_place(self) -> bool:
        """Whether somebody says which node is which host's."""
        strategy = self.spec.strategy
        return self.follows or (isinstance(strategy, Elastic) and strategy.discovery is not None)

    @property
    def bundle(self) -> dict[str, float]:
        """What each host gets."""
        return self.options.bundle(_processes(self.spec))

    @classmethod
    def diagnose(cls) -> list[Finding]:
        """Say whether there is Ray."""
        return diagnosis.findings()


class _NodeTable:
    """The nodes on which the hosts of an elastic job are to be, as the driver tells them, by their ids.

    See :class:`estimators.backends.hosts.membership.MembershipSource`.
    """

    decides = True
    title = "Ray"

    def __init__(self, provider: RayProvider) -> None:
        self._provider = provider
        self._news: News | None = None
        self._known: list[str] = []
        self._pause = _AGAIN_S

    def start(self, membership: MembershipListener) -> None:
        """Begin to tell."""
        self._news = News(membership, hopeless_after=0.0)
        self._provider.follow()

    def close(self) -> None:
        """Tell nothing any more."""
        self._news = None

    def told(self, nodes: list[str]) -> None:
        """Pass the list of nodes on."""
        if self._news is not None:
            self._pause = _AGAIN_S
            self._known = nodes
            self._news.places(dict.fromkeys(nodes))

    def failed(self, reason: str) -> None:
        """Report that Ray is out of reach, and try again after a pause."""
        if self._news is not None:
            self._news.problem(reason)
            self._provider.loop.call_later(self._pause, self._again)
            self._pause = min(2 * self._pause, _AT_LAST_S)

    def _again(self) -> None:
        if self._news is not None:
            self._provider.follow()

    def lost(self, node: str) -> None:
        """A node is gone, perhaps: Ray would say so in a quarter of a minute, and the driver names it again if not."""
        if self._news is not None and node in self._known:
            self._known = [other for other in self._known if other != node]
            self._news.places(dict.fromkeys(self._known))


def _processes(spec: TrainingJobSpec) -> int:
    return spec.strategy.ranks_per_host if spec.strategy is not None else 1
