"""Provide hosts on the nodes of a Ray cluster. On each node, an actor in a placement group holds the host's
resources.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from container.contract.strategies import Elastic
from estimators.backends.hosts.arriving import ArrivingProvider, Event, ExpectedHost
from estimators.backends.hosts.membership import Located, MembershipListener, MembershipSource, News, Watching
from estimators.backends.hosts.provider import Finding, Host, HostUnavailable, Placement, ProvidedJob
from estimators.backends.ray import diagnosis
from estimators.backends.ray.options import STRATEGIES, RayOptions
from estimators.job import fleets
from estimators.job.errors import ConfigurationError
from estimators.job.request import RunOptions, TrainingJobSpec

#: Seconds until a killed driver is replaced: the first delay, which doubles each time, and the longest. If the cluster
#: is lost, each new driver costs half a second of processor time.
_AGAIN_S, _AT_LAST_S = 1.0, 30.0
#: A host is given up this number of seconds before Ray takes the host's node away.
_MARGIN_S = 1.0
#: Variables of Ray's workers, which a driver started in a worker must not inherit.
_OF_A_WORKER = ("RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_LD_PRELOAD_ON_WORKERS", "PYTHONBREAKPOINT", "SPT_NOENV")


class RayProvider(ArrivingProvider):
    """A provider of hosts on the nodes of a Ray cluster."""

    options: RayOptions
    name: ClassVar[str] = fleets.RAY
    capabilities = fleets.FLEETS[fleets.RAY].capabilities
    title = "Ray"
    program = Path(__file__).with_name("driver.py")
    # Time, level, process, file.
    logged = re.compile(r"^\[[^\]]* [A-Z] [^\]]*\] (?:\([^)]*\) )?\S+\.\w+:\d+: ", re.MULTILINE)
    why_s = 0.1  # Ray reports the end of a worker at once

    def __init__(self, job: ProvidedJob) -> None:
        super().__init__(job, RayOptions.of(job.options.backend_options))
        self.address, self.group = self.options.address, self.options.placement_group
        if self.address is None and job.found:  # by default, the job runs in its caller's cluster
            self.address = job.found["address"]
            self.group = self.group or job.found.get("placement_group")
        self._local = False  # whether the cluster was started for this job
        self._located = Located()
        self._nodes: _NodeTable | None = None

    @classmethod
    def validate(cls, spec: TrainingJobSpec, options: RunOptions) -> list[str]:
        """Return errors if an option is invalid or if Ray cannot be used in this environment. The cluster is not
        contacted.
        """
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
        """Return the placement of the job's hosts on Ray's nodes."""
        given = RayOptions.of(options.backend_options)
        bundle = given.bundle(spec.ranks_per_host)
        amounts = ", ".join(f"{name}: {amount:g}" for name, amount in bundle.items())
        group = f"{spec.instance_count} × {{{amounts}}}, {given.strategy or STRATEGIES[0]}"
        note = f"Ray's placement group: {group}"
        return cls.described(spec, given, note, cpus=max(1, int(bundle.get("CPU", 1))), gpus=int(bundle.get("GPU", 0)))

    @classmethod
    def found(cls, spec: TrainingJobSpec) -> dict[str, Any] | None:
        """Return the address of the cluster that the caller has joined, and the placement group that the caller runs
        in.

        Return None if the caller has not joined a cluster, or has joined it through Ray's client.
        """
        ray = sys.modules.get("ray")
        if ray is None or not ray.is_initialized() or ray.util.client.ray.is_connected():
            return None
        found = {"address": ray.get_runtime_context().gcs_address}
        group = ray.util.get_current_placement_group()
        return {**found, "placement_group": group.id.hex()} if group is not None else found

    # --- the program that talks to Ray (:mod:`.driver`) ---

    def environment(self) -> Mapping[str, str]:
        """Return this process's environment without the variables of a Ray worker, for the driver program."""
        return {name: value for name, value in os.environ.items() if name not in _OF_A_WORKER}

    def connecting(self) -> dict[str, Any]:
        """Return those arguments of the request ``connect`` that only Ray's driver program has."""
        cpus = max(os.cpu_count() or 1, int(self.bundle.get("CPU", 0) * len(self.spec.hosts) + 0.999))
        return {"address": self.address, "cpus": cpus}

    def connected(self, event: Event) -> None:
        """Record whether the cluster was started for this job. If it was, tell the user."""
        self._local = event["started"]
        if self._local:
            self.job.tell(
                "A Ray cluster was started on this machine for this job: the address is 'local', or RAY_ADDRESS is not "
                "set and no running cluster was found."
            )

    def acquiring(self, group: Sequence[ExpectedHost]) -> dict[str, Any]:
        """Return those arguments of the request ``acquire`` that only Ray's driver program has."""
        options = self.options
        strategy = options.strategy or ("PACK" if self._local else STRATEGIES[0])
        fewest = self.spec.strategy.fewest_hosts if self.spec.strategy is not None else None
        return {
            "bundle": self.bundle,
            "strategy": strategy if len(group) > 1 else "PACK",
            "labels": dict(options.labels),
            "apart": strategy == "STRICT_SPREAD",
            "node": group[0].wish,
            "group": self.group,
            "of_caller": options.placement_group is None,
            "size": len(self.spec.hosts),
            "least": max(len(group), fewest or 1),
            "runtime_env": dict(options.runtime_env),
        }

    async def started(self, host: ExpectedHost) -> str:
        """Wait until the host's node is known and its agent was started, and return the host's IP address."""
        for other in host.group:
            await host.until(other.event("placed"))
        nodes = [other.place for other in {*host.group, *self.connection.hosts.values()}]
        if all(nodes):
            self.refuse_mixed(nodes, "set backend_options={'strategy': 'STRICT_SPREAD'} or 'STRICT_PACK'")
        return str((await host.until(host.event("started")))["ip"])

    def told(self, event: Event) -> None:
        """Pass the driver's new list of nodes to the membership source. Each listed node has resources for a host."""
        if self._nodes is not None:
            self._nodes.told.put_nowait(event["nodes"])

    def noticed(self, host: ExpectedHost, seconds: float) -> None:
        """Record that Ray will take a host's node away after ``seconds`` seconds. See :meth:`Host.notice`."""
        if host.remote is not None:
            host.remote.notice(max(0.0, seconds - _MARGIN_S))

    def where(self, host: ExpectedHost) -> str:
        """Return the name of a host's node for error messages. Return "" if the node is not known."""
        return f"node {host.place[:12]}" if host.place else ""

    def lost(self, host: ExpectedHost, reason: str) -> None:
        """Remove a lost host's node from the table. The node is added again when the driver reports that the node is
        alive.
        """
        if self._nodes is not None:
            self._nodes.told.put_nowait(host.place)

    # --- hosts ---

    async def acquire(self, name: str) -> Host:
        """Acquire a host.

        Hosts that are requested at the same time share one placement group. In an elastic job, each host has its own
        placement group.
        """
        host = ExpectedHost(self, name)
        if self.waits_for_place:
            host.wish = await self._located.wait(name)
            self._located.forget(name)
        return await self.get(host)

    def locate(self, name: str, place: str) -> None:
        """Set the node that a host must run on."""
        self._located.locate(name, place)

    def membership(self) -> MembershipSource | None:
        """Return the source that lists the nodes an elastic job may use.

        Return None if the number of hosts does not depend on the cluster's nodes.
        """
        if not self.follows:
            return None
        self._nodes = _NodeTable(self)
        return self._nodes

    def following(self) -> dict[str, Any]:
        """Return the arguments of the request ``follow``: the number of hosts, and the resources to reserve for each
        host.
        """
        strategy, options = self.spec.strategy, self.options
        assert isinstance(strategy, Elastic)
        most = strategy.most_hosts(len(self.spec.hosts))
        return {"most": most, "bundle": self.bundle, "labels": dict(options.labels)}

    @property
    def follows(self) -> bool:
        """Return whether the job is elastic and gets a host on each of the cluster's suitable nodes."""
        return self.elastic and self.options.follow_nodes and self.group is None

    @property
    def waits_for_place(self) -> bool:
        """Return whether a membership source decides which node each host runs on."""
        strategy = self.spec.strategy
        return self.follows or (isinstance(strategy, Elastic) and strategy.discovery is not None)

    @property
    def bundle(self) -> dict[str, float]:
        """Return the resources of each host."""
        return self.options.bundle(self.spec.ranks_per_host)

    @classmethod
    def diagnose(cls) -> list[Finding]:
        """Return a finding about Ray for ``fleetfit doctor``."""
        return diagnosis.findings()


class _NodeTable(Watching):
    """A membership source that lists the ids of the nodes for the hosts of an elastic job, as the driver program
    reports them.

    Attributes:
        told: A queue with two kinds of items: the driver's complete lists of nodes, and the ids of single nodes whose
            host was lost. Such a node is removed at once, because Ray would report the loss of the node only after
            about 15 s. The driver lists the node again if the node is alive.
    """

    decides = True
    title = "Ray"

    def __init__(self, provider: RayProvider) -> None:
        super().__init__(provider.loop)
        self._provider = provider
        self.told: asyncio.Queue[list[str] | str] = asyncio.Queue()

    async def watch(self, membership: MembershipListener) -> None:
        """Report the nodes. If the driver program has ended, start it again after a pause."""
        news, nodes, pause = News(membership, hopeless_after=0.0), list[str](), _AGAIN_S
        while True:
            connection = self._provider.connection
            try:
                await connection.until(connection.joined)
                connection.send(op="follow", **self._provider.following())
                while True:
                    told = await connection.until(self.told.get())
                    if isinstance(told, list):
                        nodes, pause = told, _AGAIN_S
                    elif told in nodes:
                        nodes = [node for node in nodes if node != told]
                    else:
                        continue
                    news.places(dict.fromkeys(nodes))
            except HostUnavailable as error:
                news.problem(str(error))
            await asyncio.sleep(pause)
            pause = min(2 * pause, _AT_LAST_S)
