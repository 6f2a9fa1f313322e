"""Run a Ray driver for a job's supervisor. The driver starts actors on the cluster's nodes.

    python -I driver.py

This is a separate program (:mod:`estimators.backends.hosts.cluster_program`), because the supervisor should neither
load Ray's hundred modules nor run Ray's threads. The program has these requests and arguments in addition to those of
every cluster program:

* ``connect`` with ``address`` and ``cpus`` (the number of CPUs of a cluster that is started here). The event
  ``connected`` also has ``started``, which says whether the cluster was started here.
* ``acquire`` with ``bundle``, ``strategy``, ``labels``, ``apart``, ``node``, ``group``, ``of_caller``, ``size``,
  ``least`` and ``runtime_env``. ``apart`` says whether hosts of different requests must be on different nodes.
  ``node`` is the id of a node, and ``group`` the id of an existing placement group. ``of_caller`` says whether the
  job's caller runs in this group. ``size`` is the job's number of hosts, and ``least`` is the number of bundles that
  the group must have. The events of each host are ``placed`` with ``node``, then ``started`` with ``ip``. When the
  host's node is drained, ``notice`` with ``seconds`` follows.
* ``follow`` with ``most``, ``bundle`` and ``labels`` reserves resources for ``most`` hosts, including the hosts that
  the job already has. Each host gets a node of its own. The event is ``places`` with ``nodes``, the ids of the
  nodes with reserved resources. It is sent immediately and after each change.

Each host sends its data over a separate connection from its node to the supervisor. The connection shows the loss of a
node earlier than Ray, which reports the loss only after 14 s.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from typing import Any

if __name__ == "__main__":  # run as a separate program
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    sys.path.append(os.path.join(os.path.dirname(sys.path[-1]), "hosts"))
    import cluster_program  # type: ignore[import-not-found]
    import joining  # type: ignore[import-not-found]
    import shortage  # type: ignore[import-not-found]
else:
    from estimators.backends.hosts import cluster_program, joining
    from estimators.backends.ray import shortage

start_agent = joining.start_agent

#: Seconds of one wait for Ray, which accepts only whole seconds.
_LOOK_S = 1.0
#: Seconds within which a connection to the cluster's address must be made.
_REACH_S = 10.0
#: Seconds for which the node of a lost host is avoided, and after which a slow start of workers is reported.
_AVOID_S, _SLOW_S = 20.0, 5.0
#: Seconds between two checks of the nodes, and seconds that are reported for a node that is drained without a deadline.
_WATCH_S, _NOTICE_S = 0.25, 30.0
#: Longest time of one request to :class:`DrainWatch`, and the pause after a failed one, in seconds.
_HOLD_S, _AGAIN_S = 20.0, 5.0
#: Maximum number of placement groups that wait for free resources at the same time.
_STANDING = 16
#: Ray's label with the id of a node.
_NODE = "ray.io/node-id"
#: Variables without the prefix ``RAY_`` that Ray sets for its workers. They would change a script's behaviour.
_RAYS = ("PYTHONBREAKPOINT", "SPT_NOENV", "OMP_NUM_THREADS")

# --- in the actor, on a node: only the standard library and :mod:`estimators.backends.hosts.joining` ---


class HostActor:
    """An actor that holds a host's resources on its node. The actor ends when the host's agent ends, and the agent ends
    when the actor ends.
    """

    def __init__(self) -> None:
        self._agent: socket.socket | None = None

    def start(self, asked: dict[str, Any], code: bytes) -> dict[str, Any]:
        """Start the agent. The agent's standard input and output are a connection to the supervisor.

        Returns:
            ``{"ip": …}`` with the node's address, or ``{"error": …}`` if the agent could not be started.
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
        """Wait until the agent has ended, then exit this actor."""
        import ray

        assert self._agent is not None
        with contextlib.suppress(OSError):
            self._agent.recv(1)
        ray.actor.exit_actor()


class DrainWatch:
    """An actor in the cluster that reports which nodes are being drained, because Ray's client has no function for
    that.
    """

    def changed(self, known: dict[str, float]) -> dict[str, float]:
        """Wait until the set of drained nodes differs from ``known``, and return the drained nodes.

        The wait ends after 20 s even if the set is still the same.

        Args:
            known: The result of the last call.

        Returns:
            The time at which each drained node leaves the cluster, in seconds since the epoch, by the node's id.
        """
        until = time.monotonic() + _HOLD_S
        while True:
            now = time.time()
            found = {node: now + seconds for node, seconds in _drained().items()}
            if found.keys() != known.keys() or time.monotonic() > until:
                return {**found, **{node: at for node, at in known.items() if node in found}}
            time.sleep(_WATCH_S)


# --- in the driver ---


class RayHost(cluster_program.ProgramHost):
    """A host whose resources an actor holds."""

    def __init__(self, wanted: dict[str, str]) -> None:
        super().__init__(wanted)
        self.node = ""
        self.actor: Any = None
        self.problem: str | None = None  # why the actor cannot be started
        self.group: Any = None
        self.bundle: int | None = None  # the index of the host's bundle in the user's placement group


class RayDriver(cluster_program.Program):
    """A program that executes a supervisor's requests to Ray."""

    host_type = RayHost

    def __init__(self, output: int) -> None:
        super().__init__(output)
        self._placing = threading.Lock()  # hosts of an elastic job are placed one by one, on different nodes
        self._rooms = threading.RLock()  # guards the reported nodes and the resources reserved there
        self._avoided: dict[str, float] = {}  # nodes of lost hosts -> end of the time in which they are avoided
        self._archive: Any = None
        self._client = False
        self._taken_at: dict[str, float] = {}  # with Ray's client: drained nodes -> time of their end
        self._followed: dict[str, Any] | None = None
        #: Reported nodes, in order -> the placement group that reserves the node's resources. None if a host uses the
        #: group.
        self._places: dict[str, Any] = {}
        #: Placement groups that wait for free resources, each with the nodes that the group excludes.
        self._standing: list[tuple[Any, frozenset[str]]] = []
        self._told: list[str] | None = None
        self._lacks = ""

    # --- the cluster ---

    def connect(self, asked: dict[str, Any]) -> None:
        """Connect to the Ray cluster, or start a cluster on this machine."""
        try:
            import ray
        except Exception as error:  # noqa: BLE001 - importing Ray may raise anything
            self.say("refused", reason=f"Ray cannot be imported: {error}")
            return
        ray.cloudpickle.register_pickle_by_value(joining)  # the nodes do not have this module
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
        except Exception as error:  # noqa: BLE001 - Ray raises many kinds of errors
            remedy = ""
            if isinstance(error, ConnectionError) and error.errno is None:  # something listens at that address
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
        """Start an actor that reports drained nodes, and store the actor's reports."""
        import ray

        while True:
            try:
                watch = ray.remote(DrainWatch).options(num_cpus=0, max_restarts=-1).remote()
                while True:
                    self._taken_at = ray.get(watch.changed.remote(self._taken_at))
            except Exception:  # noqa: BLE001 - for example, the actor's node is gone
                time.sleep(_AGAIN_S)

    def _drained(self) -> dict[str, float]:
        """Return the number of seconds until each drained node leaves the cluster, by the node's id."""
        if not self._client:
            return _drained()
        now = time.time()
        return {node: max(0.0, at - now) for node, at in self._taken_at.items()}

    def _watch(self) -> None:
        """Report when a host's node is being drained. For an elastic job, also report changes of the nodes with
        reserved resources.
        """
        noticed: set[str] = set()
        took = 0.0
        while True:
            time.sleep(max(_WATCH_S, 20 * took))  # reading a table of thousands of nodes takes long
            began = time.monotonic()
            with contextlib.suppress(Exception):  # a restarting head answers later
                drained = self._drained()
                for host in list(self.hosts.values()):
                    if host.node in drained and host.identity not in noticed:
                        noticed.add(host.identity)
                        self.say("notice", host=host.identity, seconds=drained[host.node])
                if self._followed is not None:
                    with self._rooms:
                        self._look_for_room(frozenset(drained))
            took = time.monotonic() - began

    # --- nodes that join and leave ---

    def other(self, operation: str, asked: dict[str, Any]) -> None:
        """Handle the request ``follow``: start to report the nodes with resources that are reserved for hosts."""
        with self._rooms:
            self._followed = asked
            taken = self._taken
            self._places = {node: room for node, room in self._places.items() if room is not None or node in taken}
            self._told = None

    def _look_for_room(self, drained: frozenset[str]) -> None:
        """Reserve resources on nodes, so that an elastic job can have up to ``most`` hosts, and report these nodes.

        The request ``follow`` sets ``most``. For hosts whose resources Ray has not reserved yet, placement groups stay
        pending (at most ``_STANDING`` at a time), so that Ray's autoscaler adds nodes.

        Args:
            drained: The ids of the nodes that are being drained.
        """
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
        if kept and not self._taken:  # shown only while nothing trains
            wanted = {**self._followed, "strategy": "STRICT_SPREAD", "apart": True, "group": None}
            reason = self._shortage(wanted, lacking)
            if reason != self._lacks:
                self._lacks = reason
                self.say("pending", reason=reason)

    # --- hosts ---

    def acquire(self, asked: dict[str, Any], hosts: list[RayHost]) -> None:
        """Reserve resources for hosts, and start the hosts' actors on the nodes."""
        try:
            with self._placing if asked["apart"] and not asked["node"] else contextlib.nullcontext():
                placed = self._place(asked, hosts)
            if placed is not None:
                self._start(asked, hosts, *placed)
        except Exception as error:  # noqa: BLE001 - Ray's own, which are many
            for host in hosts:
                self.say("failed", host=host.identity, reason=shortage.line_of(error))

    def _place(self, asked: dict[str, Any], hosts: list[RayHost]) -> tuple[Any, list[int]] | None:
        """Wait until Ray has reserved resources for hosts.

        Returns:
            The placement group, and the indexes of the hosts' bundles in it. None if all hosts were released during the
            wait.
        """
        from ray.util.placement_group import placement_group, remove_placement_group

        if asked["group"]:
            return self._place_in_given(asked, hosts)
        group = self._room_at(asked["node"])
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
            now = labels if labels is None else self._labels(asked)
            if unwanted or now != labels:
                remove_placement_group(group)  # the nodes to exclude have changed
                group, labels = None, now
            if unwanted:
                return None
            said = self._tell_pending(self._shortage(asked, len(hosts)), said)
        for host in hosts:
            host.group = group
        indexes = list(range(len(hosts)))
        self._tell_placed(group, hosts, indexes)
        return group, indexes

    def _place_in_given(self, asked: dict[str, Any], hosts: list[RayHost]) -> tuple[Any, list[int]] | None:
        """Wait until enough bundles of the user's placement group are free. Give the last free bundles to the hosts.

        If the job's caller runs in the group, the first bundle is used only if the job needs all bundles.

        Returns:
            As :meth:`_place`.

        Raises:
            ValueError: the group has too few bundles.
        """
        from ray import PlacementGroupID
        from ray.util.placement_group import PlacementGroup, placement_group_table

        name, count = asked["group"], len(hosts)
        group, said = PlacementGroup(PlacementGroupID(bytes.fromhex(name))), ""
        while True:
            created = group.wait(_LOOK_S)
            bundles = placement_group_table(group)["bundles"]
            if len(bundles) < asked["least"]:
                raise ValueError(
                    f"placement group {name} has {len(bundles)} bundles, but {asked['least']} hosts were requested. "
                    "Make the group with one bundle for the caller, followed by one bundle for each host"
                )
            ours = sorted(bundles)[1 if asked["of_caller"] and len(bundles) > asked["size"] else 0 :]
            with self._rooms:
                waiting = [host for host in hosts if not host.released.is_set()]
                if not waiting:
                    return None
                used = {host.bundle for host in list(self.hosts.values())}
                free = [index for index in ours if index not in used]
                indexes = free[-count:]
                asked["bundle"] = bundles[(indexes or ours)[0]]
                if created and len(indexes) == count:
                    for host, index in zip(hosts, indexes, strict=True):
                        host.bundle = index
                    break
            lack = f"{len(free)} of the {len(ours)} bundles of placement group {name} are free, and {count} are needed"
            said = self._tell_pending(lack if created else self._shortage(asked, count), said)
            if created:
                waiting[0].released.wait(_LOOK_S)
        self._tell_placed(group, hosts, indexes)
        return group, indexes

    def _tell_pending(self, reason: str, said: str) -> str:
        """Report the reason why hosts still wait, unless ``said`` is the same reason. Return the reason."""
        if reason != said:
            self.say("pending", reason=reason)
        return reason

    def _tell_placed(self, group: Any, hosts: list[RayHost], indexes: list[int]) -> None:
        """Report the nodes of the hosts' bundles."""
        from ray.util.placement_group import placement_group_table

        nodes = placement_group_table(group)["bundles_to_node_id"]
        for host, index in zip(hosts, indexes, strict=True):
            host.node = nodes[index]
            self.say("placed", host=host.identity, node=host.node)

    def _labels(self, asked: dict[str, Any]) -> dict[str, str]:
        """Return the label selector for the hosts' nodes.

        The selector contains the labels that the user requires. If the request names a node, it selects this node.
        Otherwise, if hosts must be on different nodes, it excludes nodes that the job uses and nodes of hosts that were
        recently lost.
        """
        labels = dict(asked["labels"])
        if asked["node"]:
            labels[_NODE] = _node_of(asked["node"])
        elif asked["apart"] and (others := self._taken | self._suspects()):
            labels[_NODE] = f"!in({','.join(sorted(others))})"
        return labels

    def _room_at(self, node: str | None) -> Any:
        """Return the placement group that reserves resources on a node, and mark the group as used by a host.

        Return None if no unused placement group reserves resources on the node.
        """
        with self._rooms:
            room = self._places.get(node) if node else None
            if room is not None:
                self._places[str(node)] = None
            return room

    @property
    def _taken(self) -> set[str]:
        """Return the ids of the nodes that the job uses."""
        return {host.node for host in list(self.hosts.values()) if host.node}

    def _suspects(self) -> set[str]:
        """Return the ids of the nodes of recently lost hosts. Ray notices only after about 15 s that a node is gone."""
        now = time.monotonic()
        return {node for node, until in list(self._avoided.items()) if until > now}

    def _start(self, asked: dict[str, Any], hosts: list[RayHost], group: Any, indexes: list[int]) -> None:
        """Start an actor in each host's bundle, and the host's agent in each actor."""
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
            if host.released.is_set():  # perhaps before :meth:`release` could see the actor
                ray.kill(host.actor)
                continue
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
        """Check whether a host's node can start a worker with the runtime environment.

        If the node cannot, store the problem in the host and kill the host's actor.
        """
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(host.node, soft=False)
        python = ray.get(ray.remote(num_cpus=0, scheduling_strategy=there)(lambda: sys.executable).remote())
        host.problem = shortage.split_python(python, runtime_env)
        if host.problem is not None:
            ray.kill(host.actor)

    def _follow(self, host: RayHost, ref: Any) -> None:
        """Report whether a host has started. Then wait until the host ends, and report the end."""
        import ray

        try:
            said = ray.get(ref)
            error = said.pop("error", None)
        except Exception as raised:  # noqa: BLE001 - Ray's own, which are many
            error = host.problem or shortage.line_of(raised)
        if error is not None:
            with contextlib.suppress(Exception):
                ray.kill(host.actor)  # a healthy actor would keep its resources
            host.over.set()
            self.say("failed", host=host.identity, reason=error)
            return
        self.say("started", host=host.identity, **said)
        try:
            ray.get(host.actor.wait.remote())
        except Exception as raised:  # noqa: BLE001 - Ray's own, as above
            reason = "" if "exit_actor" in str(raised) else shortage.line_of(raised)
            self.say("ended", host=host.identity, reason=reason)
        finally:
            host.over.set()

    def lost(self, host: RayHost) -> None:
        """Avoid the node of a lost host for 20 s."""
        if host.node:
            self._avoided[host.node] = time.monotonic() + _AVOID_S

    def release(self, host: RayHost) -> None:
        """Wait until the host's actor has ended with its agent, and kill the actor after a timeout.

        When the last host of a placement group is released, the group is removed, too.
        """
        import ray
        from ray.util.placement_group import remove_placement_group

        if host.actor is not None and not host.over.wait(cluster_program.RELEASE_S):
            with contextlib.suppress(Exception):
                ray.kill(host.actor)
        if host.group is not None and all(other.released.is_set() for other in host.shares):
            with contextlib.suppress(Exception):
                remove_placement_group(host.group)

    # --- reasons for waiting, and the end ---

    def _shortage(self, asked: dict[str, Any], count: int) -> str:
        """Return a description of the resources that the cluster lacks for the hosts."""
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
        """Disconnect from the cluster. Ray then frees the job's resources.

        If this program has started the cluster, Ray stops the cluster.
        """
        if "ray" in sys.modules:
            import ray

            ray.shutdown()


def _drained() -> dict[str, float]:
    """Return the number of seconds until each drained node leaves the cluster, by the node's id."""
    from ray._private.state import state

    now = time.time() * 1000
    found: dict[str, int] = state.get_draining_nodes()
    return {node: max(0.0, (until - now) / 1000) if until else _NOTICE_S for node, until in found.items()}


def _node_of(name: str) -> str:
    """Return the id of the live node with this id, address or host name. Return the text unchanged if there is no such
    node.
    """
    import ray

    for node in ray.nodes():
        if node["Alive"] and name in (node["NodeID"], node["NodeManagerAddress"], node["NodeManagerHostname"]):
            return str(node["NodeID"])
    return name


def _look_for(address: str) -> None:
    """Check that a program listens at an address, because Ray itself would retry for a minute.

    Raises:
        OSError: no program listens at the address.
        ValueError: the address is invalid.
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
    """Return the address of this machine that the head node at ``address`` can connect to."""
    host, _, port = address.removeprefix("ray://").partition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((host, int(port or 10001)))
        return str(sock.getsockname()[0])


if __name__ == "__main__":
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # A thread that calls Ray after the disconnection must not start a new cluster.
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
    cluster_program.serve(RayDriver)
