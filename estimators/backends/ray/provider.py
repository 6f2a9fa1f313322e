"""The provider: a placement group of a Ray cluster, and on each host's node an actor that holds its place."""

from __future__ import annotations

import base64
import itertools
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from container.contract.strategies import MPI, Elastic
from container.system.loop import Loop
from estimators.backends.hosts import shipping
from estimators.backends.hosts.arrivals import Arrivals
from estimators.backends.hosts.cluster_client import ClusterClient
from estimators.backends.hosts.membership import MembershipListener, MembershipSource, News
from estimators.backends.hosts.provider import Finding, Host, Placement
from estimators.backends.hosts.remote import RemoteHost
from estimators.backends.ray import diagnosis
from estimators.backends.ray.options import STRATEGIES, RayOptions
from estimators.job.errors import ConfigurationError
from estimators.job.fleets import Capabilities
from estimators.job.request import RunOptions, TrainingJobSpec

Ready = Callable[[Host], None]
Failed = Callable[[str], None]
Event = dict[str, Any]

#: How long Ray's own word for why a host is gone is waited for, in seconds: of a worker it comes at once.
_WHY_S = 0.1
#: What stands before a line of Ray's own logs: time, level, process, file.
_LOGGED = re.compile(r"^\[[^\]]* [A-Z] [^\]]*\] (?:\([^)]*\) )?\S+\.\w+:\d+: ", re.MULTILINE)
#: After how long another driver is started where one was killed, in seconds; twice as long each time, up to the other:
#: one that looks for a cluster that is gone takes half a second of a processor.
_AGAIN_S, _AT_LAST_S = 1.0, 30.0
#: How long before Ray takes a node its host is given up, in seconds.
_MARGIN_S = 1.0
#: Variables of a worker of Ray's, which a driver that is started there must not take for its own.
_OF_A_WORKER = ("RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_LD_PRELOAD_ON_WORKERS", "PYTHONBREAKPOINT", "SPT_NOENV")


class RayProvider:
    """Nodes of a Ray cluster; see :class:`estimators.backends.hosts.provider.HostProvider`."""

    name: ClassVar[str] = "ray"
    capabilities: ClassVar[Capabilities] = Capabilities(heartbeats=True, elastic=True)

    def __init__(self, loop: Loop, spec: TrainingJobSpec, options: RunOptions) -> None:
        self.tell: Callable[[str], None] = lambda text: None
        self.protected: set[int] = set()
        self.loop = loop
        self.spec = spec
        self.options = RayOptions.of(options.backend_options)
        self.group = self.options.placement_group
        self.address = self.options.address
        self.planned = len(spec.hosts)
        self._driver: _Driver | None = None
        self._wanted: list[_Wanted] = []
        self._starts: Counter[str] = Counter()
        self._there: dict[str, _Wanted] = {}  # host -> what it came by
        self._places: dict[str, str] = {}  # host -> the node that it is said to have
        self._unplaced: dict[str, _Wanted] = {}  # hosts that wait until that is said
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
                "a job that has a host at every node has none to spare. Leave spares out, or take "
                "backend_options={'follow_nodes': False}."
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
        return Placement(
            base_dir=lambda host: f"/tmp/fleetfit-hosts-{os.getuid()}/{spec.name}/hosts/{host}/ml",
            python=given.python or "python",
            package=f"~/.cache/fleetfit/hosts/{shipping.code().name}/container",
            interface="",
            cpus=max(1, int(bundle.get("CPU", 1))),
            gpus=int(bundle.get("GPU", 0)),
            notes=(f"Ray's placement group: {group}",),
        )

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

    # --- hosts ---

    def acquire(self, name: str, ready: Ready, failed: Failed) -> None:
        """Ask for room; what is asked for at once comes in one placement group, unless the job is elastic."""
        wanted = _Wanted(self, name, ready, failed)
        if self.placed and name not in self._places:
            self._unplaced[name] = wanted
        else:
            self._submit(wanted)

    def locate(self, name: str, place: str) -> None:
        """Say which node is to be a host's."""
        self._places[name] = place
        if (wanted := self._unplaced.pop(name, None)) is not None:
            self._submit(wanted)

    def _submit(self, wanted: _Wanted) -> None:
        wanted.place = self._places.pop(wanted.name, None)
        self._wanted.append(wanted)
        if len(self._wanted) == 1:
            self.loop.call_later(0, self._ask)

    def _ask(self) -> None:
        wanted, self._wanted = self._wanted, []
        for group in [[one] for one in wanted] if self.elastic else [wanted]:
            self.driver.acquire(group)

    @property
    def driver(self) -> _Driver:
        """What speaks with Ray; another one where it has ended."""
        if self._driver is None or self._driver.over:
            self._driver = _Driver(self)
        return self._driver

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
    def placed(self) -> bool:
        """Whether somebody says which node is which host's."""
        strategy = self.spec.strategy
        return self.follows or (isinstance(strategy, Elastic) and strategy.discovery is not None)

    def told(self, event: Event) -> None:
        """The driver says something of no host."""
        if self._nodes is not None:
            self._nodes.told(event)

    def lost(self, node: str) -> None:
        """A host was lost, and perhaps its node."""
        if self._nodes is not None:
            self._nodes.lost(node)

    @property
    def elastic(self) -> bool:
        """Whether hosts come and go one by one: Ray keeps the bundles of one group together."""
        return isinstance(self.spec.strategy, Elastic)

    @property
    def bundle(self) -> dict[str, float]:
        """What each host gets."""
        return self.options.bundle(_processes(self.spec))

    def root(self, host: str) -> str:
        """Return a folder for a host that no agent has had: one that is cut off may still remove its own."""
        self._starts[host] += 1
        count = self._starts[host]
        return f"{self.spec.name if count == 1 else f'{self.spec.name}.{count}'}/hosts/{host}"

    def came(self, wanted: _Wanted, host: Host) -> None:
        """A host is there."""
        self._there[wanted.name] = wanted
        wanted.ready(host)

    def release(self, host: Host) -> None:
        """Let Ray have what the host had."""
        wanted = self._there.pop(host.name, None)
        if wanted is not None:
            wanted.release()

    def close(self) -> None:
        """Leave the cluster."""
        if self._driver is not None:
            self._driver.close()

    @classmethod
    def diagnose(cls) -> list[Finding]:
        """Say whether there is Ray."""
        return diagnosis.findings()


class _Wanted:
    """A host that is asked for, and then there.

    Attributes:
        name: Its name in the job.
        identity: By which it is known to the driver; "" before that was asked.
        node: Its node's id, when Ray has found room.
        place: The node that it is to have, if that is said.
        lost: Whether its connection has ended by itself.
    """

    def __init__(self, provider: RayProvider, name: str, ready: Ready, failed: Failed) -> None:
        self._provider = provider
        self.name = name
        self.ready = ready
        self._failed = failed
        self.identity = ""
        self.node = ""
        self.place: str | None = None
        self.lost = False
        self._driver: _Driver | None = None
        self._host: RemoteHost | None = None
        self._fd = -1
        self._event: Event | None = None
        self._reason = ""
        self._over = False
        self._waiting: Callable[[], None] | None = None

    def asked(self, driver: _Driver, identity: str) -> None:
        """The driver has been asked for it."""
        self._driver, self.identity = driver, identity

    def arrived(self, fd: int) -> None:
        """Its connection is there."""
        if self._over:
            os.close(fd)
            return
        self._fd = fd
        self._begin()

    def told(self, event: Event) -> None:
        """The driver says something of it."""
        if event["event"] == "placed":
            self.node = event["node"]
        elif event["event"] == "started":
            self._event = event
            self._begin()
        elif event["event"] == "notice" and self._host is not None:
            self._host.on_notice(max(0.0, event["seconds"] - _MARGIN_S))
        elif event["event"] == "failed":
            self.fail(event["reason"])
        elif event["event"] == "ended":
            self._reason = event["reason"]
            if self._waiting is not None:
                self._waiting()

    def _begin(self) -> None:
        if self._fd < 0 or self._event is None or self._over:
            return
        theirs = self._event["python_version"].split(".")[:2]
        ours = [str(number) for number in sys.version_info[:2]]
        if theirs != ours:
            self.fail(
                f"its Python is {'.'.join(theirs)}, and this is {'.'.join(ours)}; name another one with "
                "backend_options={'python': …}"
            )
            return
        fd, self._fd = self._fd, -1
        self._over = True
        assert self._driver is not None
        provider = self._provider
        self._host = _NodeHost(
            provider.loop,
            self.name,
            fd,
            fd,
            why=self._why,
            root=provider.root(self.name),
            address=self._event["ip"],
            caller_address=self._driver.caller_address,
            interface="",
            ready=lambda host: provider.came(self, host),
            failed=self._refuse,
            silence=provider.options.silence,
        )

    def fail(self, reason: str) -> None:
        """It does not come."""
        if not self._over:
            self._over = True
            self._refuse(f"node {self.node[:12]}: {reason}" if self.node else reason)

    def _refuse(self, reason: str) -> None:
        self.release()
        self._failed(reason)

    def release(self) -> None:
        """It is not needed any more."""
        self._over = True
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._driver is not None and self.identity:
            self._driver.release(self)

    def _why(self, reason: str, then: Callable[[str], None]) -> None:
        """Find out why the connection has ended: Ray may have a word for it."""
        self.lost = True

        def told() -> None:
            timer.cancel()
            self._waiting = None
            then(f"{reason} ({self._reason})" if self._reason else reason)
            self._provider.lost(self.node)

        self._waiting = told
        timer = self._provider.loop.call_later(0.0 if self._reason else _WHY_S, told)


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
        self._provider.driver.follow()

    def close(self) -> None:
        """Tell nothing any more."""
        self._news = None

    def told(self, event: Event) -> None:
        """The driver says which nodes there are, or is gone."""
        if self._news is None:
            return
        if event["event"] == "places":
            self._pause = _AGAIN_S
            self._known = event["nodes"]
            self._news.places(dict.fromkeys(self._known))
        else:
            self._news.problem(event["reason"])
            self._provider.loop.call_later(self._pause, self._again)
            self._pause = min(2 * self._pause, _AT_LAST_S)

    def _again(self) -> None:
        if self._news is not None:
            self._provider.driver.follow()

    def lost(self, node: str) -> None:
        """A node is gone, perhaps: Ray would say so in a quarter of a minute, and the driver names it again if not."""
        if self._news is not None and node in self._known:
            self._known = [other for other in self._known if other != node]
            self._news.places(dict.fromkeys(self._known))


class _NodeHost(RemoteHost):
    """A host whose place an actor holds: its end may be why the host is lost."""

    def __init__(self, *arguments: object, why: Callable[[str, Callable[[str], None]], None], **more: object) -> None:
        self._why = why
        super().__init__(*arguments, **more)  # type: ignore[arg-type]

    def _lost(self, reason: str) -> None:
        self._why(reason, super()._lost)


class _Driver:
    """The program that speaks with Ray (:mod:`.driver`), in the job's supervisor.

    Attributes:
        caller_address: Where the nodes reach this machine.
    """

    def __init__(self, provider: RayProvider) -> None:
        self._provider = provider
        self._loop = provider.loop
        self.caller_address = ""
        self._arrivals: Arrivals | None = None
        self._hosts: dict[str, _Wanted] = {}  # by identity
        self._queued: list[list[_Wanted]] = []
        self._local = False
        self._follows = False
        self._program = ClusterClient(
            provider.loop,
            Path(__file__).with_name("driver.py"),
            self._take,
            self._ended,
            protected=provider.protected,
            env={name: value for name, value in os.environ.items() if name not in _OF_A_WORKER},
            logged=_LOGGED,
        )
        cpus = max(os.cpu_count() or 1, int(provider.bundle.get("CPU", 0) * len(provider.spec.hosts) + 0.999))
        self._program.send(op="connect", address=provider.address, cpus=cpus, code=self._program.code)

    @property
    def over(self) -> bool:
        """Whether it has ended, or could not join the cluster."""
        return self._program.over

    def acquire(self, group: list[_Wanted]) -> None:
        """Ask for hosts that are to be had together, when the cluster has been joined."""
        if self._arrivals is None:
            self._queued.append(group)
            return
        provider, options = self._provider, self._provider.options
        hosts = []
        for one in group:
            identity, key = self._arrivals.expect(one.arrived)
            one.asked(self, base64.b64encode(identity).decode())
            self._hosts[one.identity] = one
            hosts.append({"name": one.name, "identity": one.identity, "key": base64.b64encode(key).decode()})
        strategy = options.strategy or ("PACK" if self._local else STRATEGIES[0])
        self._program.send(
            op="acquire",
            hosts=hosts,
            bundle=provider.bundle,
            strategy=strategy if len(group) > 1 else "PACK",
            labels=dict(options.labels),
            apart=strategy == "STRICT_SPREAD",
            node=group[0].place,
            group=provider.group,
            runtime_env=dict(options.runtime_env),
            python=options.python,
            address=self.caller_address,
            port=self._arrivals.port,
        )

    def follow(self) -> None:
        """Have told which nodes there are for the job's hosts, when the cluster has been joined."""
        if self._arrivals is None:
            self._follows = True
            return
        provider = self._provider
        strategy = provider.spec.strategy
        assert isinstance(strategy, Elastic)
        most = strategy.most_hosts(provider.planned)
        self._program.send(op="follow", most=most, bundle=provider.bundle, labels=dict(provider.options.labels))

    def release(self, wanted: _Wanted) -> None:
        """A host is not needed any more."""
        if self._hosts.pop(wanted.identity, None) is not None:
            if self._arrivals is not None:
                self._arrivals.forget(base64.b64decode(wanted.identity))
            self._program.send(op="release", host=wanted.identity, lost=wanted.lost)

    def close(self) -> None:
        """Have it leave the cluster; it does so by itself, and nobody has to wait."""
        self._program.close()
        if self._arrivals is not None:
            self._arrivals.close()

    def _ended(self, said: str) -> None:
        self._fail(f"the process that speaks with Ray has ended unexpectedly{f': {said}' if said else ''}")

    def _take(self, event: Event) -> None:
        if event["event"] == "refused":
            self._fail(event["reason"])
        elif event["event"] == "connected":
            self._connected(event)
        elif event["event"] == "pending":
            self._provider.tell(f"{event['reason']}.")
        elif event["event"] == "places":
            self._provider.told(event)
        elif (wanted := self._hosts.get(event["host"])) is not None:
            wanted.told(event)
            if event["event"] == "placed":
                self._refuse_mixed()

    def _connected(self, event: Event) -> None:
        provider = self._provider
        self.caller_address = provider.options.caller_address or event["node_ip"]
        self._local = event["started"]
        if self._local:
            provider.tell(
                "No Ray cluster is known here (RAY_ADDRESS), so one was started on this machine, for this job."
            )
        try:
            self._arrivals = Arrivals(self._loop, self.caller_address)
        except OSError as error:
            self._fail(
                f"nothing can listen at {self.caller_address}, where the nodes are to reach this machine "
                f"({error.strerror}); name another address of its with backend_options={{'caller_address': …}}"
            )
            return
        if self._follows:
            self.follow()
        queued, self._queued = self._queued, []
        for group in queued:
            self.acquire(group)

    def _refuse_mixed(self) -> None:
        """Hosts of an MPI job are on one node, or each on its own: MPI knows a node by its name."""
        hosts = list(self._hosts.values())
        nodes = Counter(host.node for host in hosts)
        if isinstance(self._provider.spec.strategy, MPI) and all(nodes) and 1 < len(nodes) < len(hosts):
            for host in hosts:
                host.fail(
                    "Ray has put some hosts on one node and some on others, with which MPI cannot do; take "
                    "backend_options={'strategy': 'STRICT_SPREAD'}, or 'STRICT_PACK'"
                )

    def _fail(self, reason: str) -> None:
        self.close()
        waiting = [*itertools.chain.from_iterable(self._queued), *self._hosts.values()]
        self._queued = []
        self._hosts.clear()
        for one in waiting:
            one.fail(reason)
        self._provider.told({"event": "refused", "reason": reason})


def _processes(spec: TrainingJobSpec) -> int:
    return spec.strategy.ranks_per_host if spec.strategy is not None else 1
