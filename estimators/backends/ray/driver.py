"""Speaks with Ray for a job's supervisor: a driver of Ray's, and what runs in the actors.

    python -I driver.py

It is a program of its own (:mod:`estimators.backends.hosts.cluster_program`), as Ray brings a hundred modules and
threads: the supervisor imports none of it. What it is asked for, beside what all such programs are:

* ``connect``: ``address``, ``cpus`` (of a cluster that is started here); ``connected`` has ``started`` (whether it was
  started here), too;
* ``acquire``: ``bundle``, ``strategy``, ``labels``, ``apart`` (whether hosts of other requests are to be on other
  nodes), ``node`` (an id), ``group`` (a placement group's), ``runtime_env``; answered for each host by ``placed`` with
  ``node``, then ``started`` with ``ip``, and later ``notice`` with ``seconds`` when its node is drained;
* ``follow``: ``most``, ``bundle``, ``labels``: find room for so many hosts, each on a node of its own, the job's among
  them; answered by ``places`` with ``nodes`` (ids), at first and after each change. A node's room is kept for its host.

Everything of one host goes over a connection of its own, from its node to the supervisor: Ray would tell the loss of a
node only after fourteen seconds.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from typing import Any

if __name__ == "__main__":  # a program of its own
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    sys.path.append(os.path.join(os.path.dirname(sys.path[-1]), "hosts"))
    import cluster_program  # type: ignore[import-not-found]
    import joining  # type: ignore[import-not-found]
    import shortage  # type: ignore[import-not-found]
else:
    from estimators.backends.hosts import cluster_program, joining
    from estimators.backends.ray import shortage

start_agent = joining.start_agent

#: From one look at what is waited for to the next, in seconds; Ray takes whole ones only.
_LOOK_S = 1.0
#: How long an actor may take to find the way to the supervisor, in seconds.
_REACH_S = 10.0
#: How long a node is avoided whose host was lost, and after how long a worker that starts is told of, in seconds.
_AVOID_S, _SLOW_S = 20.0, 5.0
#: From one look at the nodes to the next; the notice of a node that is drained without a deadline, in seconds.
_WATCH_S, _NOTICE_S = 0.25, 30.0
#: How long one question is held that is asked of the cluster, in seconds, and the pause after one that failed.
_HOLD_S, _AGAIN_S = 20.0, 5.0
#: For how many hosts room is waited for at once.
_STANDING = 16
#: The label by which Ray knows nodes.
_NODE = "ray.io/node-id"
#: Ray's own variables, and what it sets for its workers, which a script would take for something else.
_RAYS = ("PYTHONBREAKPOINT", "SPT_NOENV", "OMP_NUM_THREADS")

# --- in the actor, on a node: standard library only, with what :mod:`estimators.backends.hosts.joining` has ---


class HostActor:
    """Holds a host's place on its node, and the agent's life: each ends with the other."""

    def __init__(self) -> None:
        self._agent: socket.socket | None = None

    def start(self, asked: dict[str, Any], code: bytes) -> dict[str, Any]:
        """Start the agent, whose standard input and output are a connection to the supervisor.

        Returns:
            ``error``, or ``ip``.
        """
        import ray

        rays = {name for name in os.environ if name.startswith("RAY_") or name in _RAYS} - {*asked["kept"]}
        env = {name: value for name, value in os.environ.items() if name not in rays}
        try:
            self._agent = start_agent(asked, code, env)
        except OSError as error:
            return {"error": str(error)}
        return {"ip": ray.util.get_node_ip_address()}

    def wait(self) -> None:
        """Wait for the end of the agent, and end this actor then."""
        import ray

        assert self._agent is not None
        with contextlib.suppress(OSError):
            self._agent.recv(1)
        ray.actor.exit_actor()


class DrainWatch:
    """Tells from within the cluster which nodes are about to be taken: Ray's client cannot ask for that."""

    def changed(self, known: dict[str, float]) -> dict[str, float]:
        """Return when each node is taken, by the clock, as soon as that is not ``known``, or after a while."""
        until = time.monotonic() + _HOLD_S
        while True:
            now = time.time()
            found = {node: now + seconds for node, seconds in _drained().items()}
            if found.keys() != known.keys() or time.monotonic() > until:
                return {**found, **{node: at for node, at in known.items() if node in found}}
            time.sleep(_WATCH_S)


# --- in the driver ---


class RayHost(cluster_program.ProgramHost):
    """A host, whose place an actor holds."""

    def __init__(self, wanted: dict[str, str]) -> None:
        super().__init__(wanted)
        self.node = ""
        self.actor: Any = None
        self.problem: str | None = None  # why the actor cannot start
        self.group: Any = None


class RayDriver(cluster_program.Program):
    """What is asked of Ray, and its answers."""

    host_type = RayHost

    def __init__(self, output: int) -> None:
        super().__init__(output)
        self._placing = threading.Lock()  # hosts of an elastic job: each is to know where the others are
        self._rooms = threading.RLock()  # what is told of places, and kept there
        self._avoided: dict[str, float] = {}  # nodes that Ray may not know yet to be gone -> until when
        self._archive: Any = None
        self._client = False
        self._taken_at: dict[str, float] = {}  # of Ray's client: nodes that are drained -> when they go, by the clock
        self._followed: dict[str, Any] | None = None
        #: Nodes that have been told, in their order, and the room that is kept there until a host has it.
        self._places: dict[str, Any] = {}
        #: Room that is waited for, and the nodes where it is not to be.
        self._standing: list[tuple[Any, frozenset[str]]] = []
        self._told: list[str] | None = None
        self._lacks = ""

    # --- the cluster ---

    def connect(self, asked: dict[str, Any]) -> None:
        """Join the cluster, or start one."""
        try:
            import ray
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it
            self.say("refused", reason=f"Ray cannot be imported: {error}")
            return
        ray.cloudpickle.register_pickle_by_value(joining)  # nodes have it not
        given = asked["address"]
        address = given or os.environ.get("RAY_ADDRESS") or "auto"
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        started = False
        try:
            _look_for(address)
            try:
                if address == "local":
                    raise ConnectionError
                ray.init(address, **options)
            except ConnectionError:
                if address != "local" and (given or os.environ.get("RAY_ADDRESS")):
                    raise
                started = True
                ray.init("local", num_cpus=asked["cpus"], include_dashboard=False, **options)
        except Exception as error:  # noqa: BLE001 - Ray raises a dozen kinds, some of them its own
            remedy = ""
            if isinstance(error, ConnectionError) and error.errno is None:  # something listens there
                server = "a client server of Ray" if address.startswith("ray://") else "a head of Ray"
                remedy = (
                    f". Make sure that {server} listens at that port. If Ray asks for its token, set "
                    "RAY_AUTH_MODE=token"
                )
            self.say("refused", reason=f"there is no Ray at {address!r}: {shortage.line_of(error)}{remedy}")
            return
        self._archive = ray.put(self.code)
        self._client = address.startswith("ray://")
        own = _own_address(address) if self._client else ray.util.get_node_ip_address()
        self.say("connected", address=own, started=started)
        self.in_thread(self._watch)
        if self._client:
            self.in_thread(self._watch_from_within)

    def _watch_from_within(self) -> None:
        """Have an actor tell of drained nodes."""
        import ray

        while True:
            try:
                watch = ray.remote(DrainWatch).options(num_cpus=0, max_restarts=-1).remote()
                while True:
                    self._taken_at = ray.get(watch.changed.remote(self._taken_at))
            except Exception:  # noqa: BLE001 - its node is gone, say
                time.sleep(_AGAIN_S)

    def _drained(self) -> dict[str, float]:
        """Return the nodes that are about to be taken, and in how many seconds."""
        if not self._client:
            return _drained()
        now = time.time()
        return {node: max(0.0, at - now) for node, at in self._taken_at.items()}

    def _watch(self) -> None:
        """Tell hosts that their nodes will be taken, and which nodes there are for an elastic job."""
        noticed: set[str] = set()
        took = 0.0
        while True:
            time.sleep(max(_WATCH_S, 20 * took))  # a table of thousands of nodes takes long to read
            began = time.monotonic()
            with contextlib.suppress(Exception):  # a head that is restarted answers later
                drained = self._drained()
                for host in list(self.hosts.values()):
                    if host.node in drained and host.identity not in noticed:
                        noticed.add(host.identity)
                        self.say("notice", host=host.identity, seconds=drained[host.node])
                if self._followed is not None:
                    with self._rooms:
                        self._look_for_room(frozenset(drained))
            took = time.monotonic() - began

    # --- nodes that come and go ---

    def other(self, operation: str, asked: dict[str, Any]) -> None:
        """Follow the nodes."""
        with self._rooms:
            self._followed = asked
            taken = self._taken
            self._places = {node: room for node, room in self._places.items() if room is not None or node in taken}
            self._told = None

    def _look_for_room(self, drained: frozenset[str]) -> None:
        """Have as much room waited for as the job may still grow: Ray's autoscaler sees it, and brings nodes."""
        import ray
        from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

        assert self._followed is not None
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]} - self._suspects()
        for node in self._places.keys() - alive:
            if (room := self._places.pop(node)) is not None:
                remove_placement_group(room)
        waiting = []
        for group, elsewhere in self._standing:
            table = placement_group_table(group)
            node = table["bundles_to_node_id"].get(0, "") if table["state"] == "CREATED" else ""
            if node and node not in self._places and node not in drained and node in alive:
                self._places[node] = group
            elif table["state"] == "PENDING":
                waiting.append((group, elsewhere))
            else:
                remove_placement_group(group)
        elsewhere = frozenset(self._places) | self._suspects() | drained
        lacking = max(0, min(self._followed["most"] - len(self._places), _STANDING))
        kept = [one for one in waiting if one[1] == elsewhere][:lacking]
        for one in waiting:
            if one not in kept:
                remove_placement_group(one[0])
        labels = dict(self._followed["labels"])
        if elsewhere:
            labels[_NODE] = f"!in({','.join(sorted(elsewhere))})"
        while len(kept) < lacking:
            group = placement_group(
                [self._followed["bundle"]], strategy="PACK", bundle_label_selector=[labels] if labels else None
            )
            kept.append((group, elsewhere))
        self._standing = kept
        if list(self._places) != self._told:
            self._told = list(self._places)
            self.say("places", nodes=self._told)
        if kept and not self._taken:  # it is shown while nothing trains
            wanted = {**self._followed, "strategy": "STRICT_SPREAD", "apart": True, "group": None}
            reason = self._shortage(wanted, lacking)
            if reason != self._lacks:
                self._lacks = reason
                self.say("pending", reason=reason)

    # --- hosts ---

    def acquire(self, asked: dict[str, Any], hosts: list[RayHost]) -> None:
        """Find room, and start actors there."""
        try:
            with self._placing if asked["apart"] and not asked["node"] else contextlib.nullcontext():
                placed = self._place(asked, hosts)
            if placed is not None:
                self._start(asked, hosts, *placed)
        except Exception as error:  # noqa: BLE001 - Ray's own, which are many
            for host in hosts:
                self.say("failed", host=host.identity, reason=shortage.line_of(error))

    def _place(self, asked: dict[str, Any], hosts: list[RayHost]) -> tuple[Any, list[int]] | None:
        """Have Ray find room.

        Returns:
            The placement group, and the hosts' bundles in it; None where it is not needed any more.
        """
        from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

        given = bool(asked["group"])
        if given:
            group, indexes, bundles = self._given_group(asked["group"], len(hosts))
            asked["bundle"] = bundles[indexes[0]]
        else:
            group, indexes = self._room_at(asked["node"]), list(range(len(hosts)))
        labels = self._labels(asked) if group is None else None
        said = ""
        while True:
            if group is None:
                group = placement_group(
                    [asked["bundle"]] * len(hosts),
                    strategy=asked["strategy"],
                    bundle_label_selector=[labels] * len(hosts) if labels else None,
                )
            if group.wait(_LOOK_S):
                break
            unwanted = all(host.released.is_set() for host in hosts)
            now = labels if given or labels is None else self._labels(asked)
            if (unwanted or now != labels) and not given:
                remove_placement_group(group)  # where it is not to be is another question than a moment ago
                group, labels = None, now
            if unwanted:
                return None
            reason = self._shortage(asked, len(hosts))
            if reason != said:
                said = reason
                self.say("pending", reason=reason)
        nodes = placement_group_table(group)["bundles_to_node_id"]
        for host, index in zip(hosts, indexes, strict=True):
            host.node = nodes[index]
            if not given:
                host.group = group
            self.say("placed", host=host.identity, node=host.node)
        return group, indexes

    def _labels(self, asked: dict[str, Any]) -> dict[str, str]:
        """Return the labels that nodes must have for hosts: one's own, or another than those that the job has."""
        labels = dict(asked["labels"])
        if asked["node"]:
            labels[_NODE] = _node_of(asked["node"])
        elif asked["apart"] and (others := self._taken | self._suspects()):
            labels[_NODE] = f"!in({','.join(sorted(others))})"
        return labels

    def _room_at(self, node: str | None) -> Any:
        """Return the room that is kept on a node, which is its host's from now on."""
        with self._rooms:
            room = self._places.get(node) if node else None
            if room is not None:
                self._places[str(node)] = None
            return room

    @property
    def _taken(self) -> set[str]:
        """The nodes that the job has."""
        return {host.node for host in list(self.hosts.values()) if host.node}

    def _suspects(self) -> set[str]:
        """Nodes whose host was lost just now: it takes Ray a quarter of a minute to see that a node is gone."""
        now = time.monotonic()
        return {node for node, until in list(self._avoided.items()) if until > now}

    def _given_group(self, identity: str, count: int) -> tuple[Any, list[int], dict[int, dict[str, float]]]:
        """Return a placement group of somebody else's, and which of its bundles are the hosts: the last ones."""
        from ray import PlacementGroupID
        from ray.util.placement_group import PlacementGroup, placement_group_table

        group = PlacementGroup(PlacementGroupID(bytes.fromhex(identity)))
        bundles = placement_group_table(group)["bundles"]
        if len(bundles) < count:
            raise ValueError(
                f"placement group {identity} has {len(bundles)} bundles, but {count} hosts were requested. Make the "
                "group with one bundle for the caller, followed by one bundle for each host"
            )
        return group, list(range(len(bundles) - count, len(bundles))), bundles

    def _start(self, asked: dict[str, Any], hosts: list[RayHost], group: Any, indexes: list[int]) -> None:
        """Start an actor in each bundle, and have it start the agent."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = dict(asked["bundle"])
        options: dict[str, Any] = {
            "num_cpus": bundle.pop("CPU", 0),
            "num_gpus": bundle.pop("GPU", 0),
            "max_restarts": 0,
            "max_task_retries": 0,
        }
        if "memory" in bundle:
            options["memory"] = bundle.pop("memory")
        if asked["runtime_env"]:
            options["runtime_env"] = asked["runtime_env"]
        common = {name: asked[name] for name in ("address", "port", "python", "version")}
        common["kept"] = list(asked["runtime_env"].get("env_vars", ()))
        actor_class = ray.remote(HostActor)
        waiting = {}
        for host, index in zip(hosts, indexes, strict=True):
            strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
            host.actor = actor_class.options(scheduling_strategy=strategy, resources=bundle, **options).remote()
            own = {**common, "code": self.code_name, "identity": host.identity, "key": host.key}
            waiting[host.actor.start.remote(own, self._archive)] = host
        since, told = time.monotonic(), False
        while waiting:
            done, _ = ray.wait(list(waiting), num_returns=1, timeout=_LOOK_S)
            for ref in done:
                self.in_thread(self._follow, waiting.pop(ref), ref)
            if waiting and not told and time.monotonic() - since > _SLOW_S:
                told = True
                names = ", ".join(host.name for host in waiting.values())
                self.say("pending", reason=f"Ray is starting a worker for {names}, or making its runtime environment")
                for host in waiting.values():
                    self.in_thread(self._check_python, host, asked["runtime_env"])

    def _check_python(self, host: RayHost, runtime_env: dict[str, Any]) -> None:
        """Give a host up whose node cannot start a worker with the runtime environment."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(host.node, soft=False)
        python = ray.get(ray.remote(num_cpus=0, scheduling_strategy=there)(lambda: sys.executable).remote())
        host.problem = shortage.split_python(python, runtime_env)
        if host.problem is not None:
            ray.kill(host.actor)

    def _follow(self, host: RayHost, ref: Any) -> None:
        """Tell how a host has started, and how it ends."""
        import ray

        try:
            said = ray.get(ref)
            error = said.pop("error", None)
        except Exception as raised:  # noqa: BLE001 - Ray's own, which are many
            error = host.problem or shortage.line_of(raised)
        if error is not None:
            with contextlib.suppress(Exception):
                ray.kill(host.actor)  # it may be well, and would keep what it has
            host.over.set()
            self.say("failed", host=host.identity, reason=error)
            return
        self.say("started", host=host.identity, **said)
        try:
            ray.get(host.actor.wait.remote())
        except Exception as raised:  # noqa: BLE001 - the same
            reason = "" if "exit_actor" in str(raised) else shortage.line_of(raised)
            self.say("ended", host=host.identity, reason=reason)
        finally:
            host.over.set()

    def lost(self, host: RayHost) -> None:
        """Avoid the node of a lost host for a time."""
        if host.node:
            self._avoided[host.node] = time.monotonic() + _AVOID_S

    def release(self, host: RayHost) -> None:
        """Wait for the actor to end with its agent; kill it if it does not."""
        import ray
        from ray.util.placement_group import remove_placement_group

        if host.actor is not None and not host.over.wait(cluster_program.RELEASE_S):
            with contextlib.suppress(Exception):
                ray.kill(host.actor)
        if host.group is not None and all(other.released.is_set() for other in host.shares):
            with contextlib.suppress(Exception):
                remove_placement_group(host.group)

    # --- what is said of it ---

    def _shortage(self, asked: dict[str, Any], count: int) -> str:
        """Say what is lacking."""
        import ray

        free = self._free()
        found: str = shortage.reason(
            asked,
            count,
            [node for node in ray.nodes() if node["Alive"]],
            taken=len(self._taken),
            free=free,
            available=ray.available_resources() if free is None else {},
        )
        return found

    def _free(self) -> dict[str, dict[str, float]] | None:
        if self._client:
            return None
        from ray._private.state import available_resources_per_node

        found: dict[str, dict[str, float]] = available_resources_per_node()
        return found

    def disconnect(self) -> None:
        """Leave the cluster: Ray takes back what the job had, and ends a cluster that was started here."""
        if "ray" in sys.modules:
            import ray

            ray.shutdown()


def _drained() -> dict[str, float]:
    """Return the nodes that are about to be taken, and in how many seconds."""
    from ray._private.state import state

    now = time.time() * 1000
    found: dict[str, int] = state.get_draining_nodes()
    return {node: max(0.0, (until - now) / 1000) if until else _NOTICE_S for node, until in found.items()}


def _node_of(name: str) -> str:
    """Return the id of a node, of which an id, an address or a host name is given."""
    import ray

    for node in ray.nodes():
        if node["Alive"] and name in (node["NodeID"], node["NodeManagerAddress"], node["NodeManagerHostname"]):
            return str(node["NodeID"])
    return name


def _look_for(address: str) -> None:
    """See that somebody listens at an address: Ray itself tries that for a minute.

    Raises:
        OSError: nobody does.
        ValueError: it is none.
    """
    if address in ("auto", "local"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal():
        host, port = address.removeprefix("ray://"), "10001" if address.startswith("ray://") else ""
    if not port or not host:
        raise ValueError("an address is 'host:port', 'ray://host:port', 'auto' or 'local'")
    socket.create_connection((host, int(port)), timeout=_REACH_S).close()


def _own_address(address: str) -> str:
    """Return the address by which this machine reaches a head node, which is the one that the head node sees."""
    host, _, port = address.removeprefix("ray://").partition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((host, int(port or 10001)))
        return str(sock.getsockname()[0])


if __name__ == "__main__":
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # A thread that asks for something when the cluster has been left already must not start a Ray for it.
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
    cluster_program.serve(RayDriver)
