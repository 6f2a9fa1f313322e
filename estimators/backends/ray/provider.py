"""The provider: a placement group of a Ray cluster, and on each host's node an actor that holds its place."""

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
    name: ClassVar[str] = fleets.RAY
    capabilities = fleets.FLEETS[fleets.RAY].capabilities
    title = "Ray"
    program = Path(__file__).with_name("driver.py")
    # Time, level, process, file.
    logged = re.compile(r"^\[[^\]]* [A-Z] [^\]]*\] (?:\([^)]*\) )?\S+\.\w+:\d+: ", re.MULTILINE)
    why_s = 0.1  # of a worker it comes at once

    def __init__(self, job: ProvidedJob) -> None:
        super().__init__(job, RayOptions.of(job.options.backend_options))
        self.address, self.group = self.options.address, self.options.placement_group
        if self.address is None and job.found:  # the job runs where its caller is, unless the options say where
            self.address = job.found["address"]
            self.group = self.group or job.found.get("placement_group")
        self._local = False  # whether the cluster was started for this job
        self._located = Located()
        self._nodes: _NodeTable | None = None

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

    # --- the program that talks to Ray (:mod:`.driver`) ---

    def environment(self) -> Mapping[str, str]:
        """Return the program's environment, without that of a Ray worker."""
        return {name: value for name, value in os.environ.items() if name not in _OF_A_WORKER}

    def connecting(self) -> dict[str, Any]:
        """Return Ray's own arguments of ``connect``."""
        cpus = max(os.cpu_count() or 1, int(self.bundle.get("CPU", 0) * len(self.spec.hosts) + 0.999))
        return {"address": self.address, "cpus": cpus}

    def connected(self, event: Event) -> None:
        """Note whether the cluster was started for this job."""
        self._local = event["started"]
        if self._local:
            self.job.tell(
                "A Ray cluster was started on this machine for this job: the address is 'local', or RAY_ADDRESS is not "
                "set and no running cluster was found."
            )

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

    async def started(self, host: ExpectedHost) -> str:
        """Wait for a host's node, then for the start of its agent there."""
        for other in host.group:
            await host.until(other.event("placed"))
        nodes = [other.place for other in {*host.group, *self.connection.hosts.values()}]
        if all(nodes):
            self.refuse_mixed(nodes, "set backend_options={'strategy': 'STRICT_SPREAD'} or 'STRICT_PACK'")
        return str((await host.until(host.event("started")))["ip"])

    def told(self, event: Event) -> None:
        """Take the list of nodes."""
        if self._nodes is not None:
            self._nodes.told.put_nowait(event["nodes"])

    def noticed(self, host: ExpectedHost, seconds: float) -> None:
        """Tell a host that Ray will take its node."""
        if host.remote is not None:
            host.remote.notice(max(0.0, seconds - _MARGIN_S))

    def where(self, host: ExpectedHost) -> str:
        """Return the prefix of a host's failure reason: its node, if known."""
        return f"node {host.place[:12]}" if host.place else ""

    def lost(self, host: ExpectedHost, reason: str) -> None:
        """Take the host's node out of the table until Ray confirms it."""
        if self._nodes is not None:
            self._nodes.told.put_nowait(host.place)

    # --- hosts ---

    async def acquire(self, name: str) -> Host:
        """Ask for room; what is asked for at once comes in one placement group, unless the job is elastic."""
        host = ExpectedHost(self, name)
        if self.waits_for_place:
            host.wish = await self._located.wait(name)
            self._located.forget(name)
        return await self.get(host)

    def locate(self, name: str, place: str) -> None:
        """Say which node is to be a host's."""
        self._located.locate(name, place)

    def membership(self) -> MembershipSource | None:
        """Return the cluster's table of nodes, as far as an elastic job may have them."""
        if not self.follows:
            return None
        self._nodes = _NodeTable(self)
        return self._nodes

    def following(self) -> dict[str, Any]:
        """Return the arguments of ``follow``: for how many hosts there is to be room."""
        strategy, options = self.spec.strategy, self.options
        assert isinstance(strategy, Elastic)
        most = strategy.most_hosts(len(self.spec.hosts))
        return {"most": most, "bundle": self.bundle, "labels": dict(options.labels)}

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


class _NodeTable(Watching):
    """The nodes on which the hosts of an elastic job are to be, as the driver tells them, by their ids.

    Attributes:
        told: The lists of nodes that the driver has told, and between them each node that seems to be gone: Ray would
            say so in a quarter of a minute, and the driver names it again if it is not.
    """

    decides = True
    title = "Ray"

    def __init__(self, provider: RayProvider) -> None:
        super().__init__(provider.loop)
        self._provider = provider
        self.told: asyncio.Queue[list[str] | str] = asyncio.Queue()

    async def watch(self, membership: MembershipListener) -> None:
        """Pass on which nodes there are; where the driver has ended, start another one after a pause."""
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


def _processes(spec: TrainingJobSpec) -> int:
    return spec.strategy.ranks_per_host if spec.strategy is not None else 1
