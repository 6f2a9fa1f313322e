"""Run Horovod's elastic driver and rendezvous beside the job's supervisor (``python -m container elastic``).

The driver's standard input is a connection to the supervisor. The driver exits when this connection ends. The
supervisor sends ``workers`` (the current workers, the oldest first), ``ended`` (a worker and its exit code) and
``stop``. The driver sends ``listening`` (once), ``start`` (a worker, its environment, rank and size), ``end`` (a worker
that no longer has a rank), ``membership`` (the workers in rank order), ``waiting`` (for enough workers), ``enough``,
``too_few`` (the wait has timed out) and ``finished``. Horovod's log is written to standard error.

The driver uses Horovod's classes (``horovod.runner.elastic``, ``horovod.runner.http.http_server``, version 0.28). The
differences from Horovod, and their reasons:

* the driver is notified of changes by events. Horovod's driver polls every second;
* two changes within one second get different time stamps. Horovod's time stamps are whole seconds, so that its workers
  drop the second change;
* if too few workers are left, they go to the rendezvous at once and wait there, as in Horovod. In addition, the
  supervisor is notified when this wait has timed out;
* every change leads to a complete rendezvous. If workers were only removed, Horovod's remaining workers skip the
  rendezvous. A worker that joins meanwhile would wait for them forever (horovod#3494);
* if a change occurs before the first worker (rank 0) can be notified, the notice is sent later. The notice is repeated
  until the next rendezvous, because a worker forgets a notice that arrives during the rendezvous for an earlier change
  (``State.on_reset``);
* the rendezvous listens on the given address only, and does not unpickle data from workers;
* when a worker has ended, the rendezvous answers the other workers with the HTTP status "gone", so that they do not
  wait for that worker. Our patched Horovod then aborts the rendezvous and requests new ranks
  (:mod:`estimators.provision.patches`).
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http
import io
import logging
import os
import pickle
import socket
import sys
import threading
import time
from typing import Any

from horovod.runner.common.util.timeout import TimeoutException
from horovod.runner.elastic.discovery import DiscoveredHosts, HostDiscovery
from horovod.runner.elastic.driver import ElasticDriver
from horovod.runner.elastic.rendezvous import GET_RANK_AND_SIZE, PUT_WORKER_ADDRESSES, create_rendezvous_handler
from horovod.runner.elastic.worker import HostUpdateResult
from horovod.runner.gloo_run import create_slot_env_vars
from horovod.runner.http.http_server import RendezvousHTTPServer, RendezvousServer

from container.contract import variables
from container.system.connection import BlockingConnection

#: Time between two notices to the workers about the same change, in seconds.
_TELL_AGAIN = 1.0


class ReportedWorkers(HostDiscovery):
    """The workers that the supervisor has last reported as available. Each worker is a host with one slot."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers: tuple[str, ...] = ()

    def set(self, workers: list[str]) -> None:
        """Replace the list of workers."""
        with self._lock:
            self._workers = tuple(workers)

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Return the number of slots of each worker, which is always 1. Horovod's driver calls this method.

        The workers are in the supervisor's order.
        """
        with self._lock:
            return dict.fromkeys(self._workers, 1)


class Rendezvous(RendezvousServer):
    """Horovod's rendezvous, which listens on one address instead of all addresses."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address

    def start(self, handler_cls: Any) -> int:
        """Start the server, and return its port. Horovod's driver calls this method."""
        self._httpd = RendezvousHTTPServer((self._address, 0), handler_cls, self._verbose)
        self._httpd.daemon_threads = True
        self._listen_thread = threading.Thread(target=self._httpd.serve_forever, args=(0.05,), daemon=True)
        self._listen_thread.start()
        return int(self._httpd.server_address[1])


class HorovodDriver(ElasticDriver):
    """A subclass of Horovod's driver that is notified of changes by events. Horovod's driver polls.

    Args:
        rendezvous: The rendezvous of the workers.
        fleet: The available workers.
        least: The minimum number of workers. With fewer workers, the driver waits.
        most: The maximum number of workers.
        timeout: The longest time to wait for enough workers, in seconds.
        reset_limit: The maximum number of repeated rendezvous. None for no limit.
        send: A function that sends a message to the supervisor.
    """

    def __init__(
        self,
        rendezvous: Rendezvous,
        fleet: ReportedWorkers,
        *,
        least: int,
        most: int,
        timeout: float,
        reset_limit: int | None,
        send: Any,
    ) -> None:
        self._changed = threading.Event()
        self._send = send
        self._told = 0  # time stamp of the last notice to the workers
        self._pending = False  # whether the workers have been notified, and no rendezvous has followed yet
        self._generation = -1
        self.error = ""
        super().__init__(rendezvous, fleet, least, most, timeout=max(1, round(timeout)), reset_limit=reset_limit)

    def changed(self) -> None:
        """Notify the driver that the available workers have changed."""
        self._changed.set()

    def stop(self, error_message: str | None = None) -> None:
        """Stop the driver. Record the error message, unless an error was recorded before."""
        self.error = self.error or (error_message or "")
        self._shutdown.set()
        self._changed.set()
        with self._wait_hosts_cond:
            self._wait_hosts_cond.notify_all()

    def wait_for_available_slots(self, min_num_proc: int, min_hosts: int = 1) -> Any:
        """Wait for enough workers, as Horovod's method does, and report the wait and its result to the supervisor.

        A timeout is reported at once, while the waiting workers still exist.
        """
        self._send("waiting")
        try:
            found = super().wait_for_available_slots(min_num_proc, min_hosts)
        except TimeoutException:
            self._send("too_few")
            raise
        self._send("enough")
        return found

    def _discover_hosts(self) -> None:
        while not self._shutdown.is_set():
            with self._wait_hosts_cond:
                found = self._host_manager.update_available_hosts()
                if found != HostUpdateResult.no_update:
                    self._notify_workers_host_changes(self._host_manager.current_hosts, found)
                    self._wait_hosts_cond.notify_all()
                elif self._pending:
                    self._notify_workers_host_changes(self._host_manager.current_hosts, HostUpdateResult.mixed)
            self._changed.wait(_TELL_AGAIN if self._pending else None)
            self._changed.clear()

    def _get_host_assignments(self, current_hosts: Any) -> Any:
        # Oldest first: the first worker has the training's state, which the others copy. Order and workers must come
        # from the same call of update_available_hosts(), because the next call may return another result.
        order = [worker for worker in current_hosts.host_slots if worker in current_hosts.available_hosts]
        return super()._get_host_assignments(DiscoveredHosts(current_hosts.host_slots, order))

    def _notify_workers_host_changes(self, current_hosts: Any, update_res: Any) -> None:
        self._pending = False
        following: Any = {}  # with too few workers, the remaining ones stop, and wait for others at the rendezvous
        if current_hosts.count_available_slots() >= self._min_num_proc:
            following, _ = self._get_host_assignments(current_hosts)
        first = self.get_coordinator_info()
        client = self.get_worker_client(first) if first is not None else None
        if client is None or dict(following) == dict(self.host_assignments):
            return
        self._pending = True
        self._told = max(self._told + 1, int(time.time()))
        try:
            client.notify_hosts_updated(self._told, HostUpdateResult.mixed)
        except Exception as error:  # noqa: BLE001 - that worker has ended, which also leads to a rendezvous
            logging.info("%s could not be told of a change: %s", first.hostname, error)

    def register_worker_server(self, host: str, slot: int, addresses: Any, secret_key: bytes) -> None:
        """Register a worker's address, as Horovod's method does. If it is the first worker's address, notify that
        worker of a change that it has not been notified of yet.
        """
        super().register_worker_server(host, slot, addresses, secret_key)
        first = self.get_coordinator_info()
        if first is not None and first.hostname == host:
            with self._wait_hosts_cond:
                self._notify_workers_host_changes(self._host_manager.current_hosts, HostUpdateResult.mixed)

    def _update_host_assignments(self, current_hosts: Any) -> Any:
        try:
            pending = super()._update_host_assignments(current_hosts)
        except RuntimeError:
            self.error = "no worker is left that has the training's state"
            raise
        self._generation += 1
        self._send(
            "membership",
            generation=self._generation,
            workers=[self._rank_assignments[rank].hostname for rank in range(self._world_size)],
        )
        return pending

    def members(self) -> list[str]:
        """Return the names of the workers in the last membership."""
        return [slot.hostname for slot in list(self._rank_assignments.values())]

    def resume(self) -> None:
        """Resume after a change, as Horovod's method does. If this fails, record the error."""
        try:
            super().resume()
        except Exception as error:
            self.error = self.error or str(error)
            raise


class Workers:
    """Start workers through the supervisor. For each worker, one of Horovod's threads waits until the worker exits.

    Args:
        environment: The environment of all workers.
        send: A function that sends a message to the supervisor.
    """

    def __init__(self, environment: dict[str, str], send: Any) -> None:
        self._environment = environment
        self._send = send
        self._changed = threading.Condition()
        self._codes: dict[str, int] = {}

    def ended(self, worker: str, code: int) -> None:
        """Record that a worker has ended."""
        with self._changed:
            self._codes[worker] = code
            self._changed.notify_all()

    def have_lost(self, members: list[str]) -> bool:
        """Return whether any of the workers in ``members`` has ended."""
        with self._changed:
            return any(member in self._codes for member in members)

    def run(self, slot_info: Any, events: list[threading.Event]) -> tuple[int, float]:
        """Request the start of a worker, and wait until the worker ends. Horovod calls this method in a separate
        thread.

        Args:
            slot_info: Horovod's description of the worker: its name as a host name, its rank, and the number of
                workers.
            events: Horovod's events. If one of them is set, the worker is requested to exit.

        Returns:
            The worker's exit code, and the time of its end in seconds since the epoch.
        """
        worker = slot_info.hostname
        environment = {**self._environment, **create_slot_env_vars(slot_info)}
        self._send("start", worker=worker, environment=environment, rank=slot_info.rank, size=slot_info.size)
        asked = False
        with self._changed:
            while worker not in self._codes:
                if not asked and any(event.is_set() for event in events):
                    asked = True
                    self._send("end", worker=worker)
                self._changed.wait(1.0)  # Horovod's events and ours cannot be waited for together
            return self._codes[worker], time.time()


def handler(driver: HorovodDriver, workers: Workers) -> Any:
    """Return the class that handles the requests to the rendezvous.

    The class is Horovod's, without unpickling of data from workers, and without waits for workers that have ended.
    """

    class RendezvousHandler(create_rendezvous_handler(driver)):  # type: ignore[misc]
        def do_GET(self) -> None:
            scope = self.path.split("/")[1:2]
            if scope != [GET_RANK_AND_SIZE] and workers.have_lost(driver.members()):
                self.send_status_code(http.HTTPStatus.GONE)
            else:
                super().do_GET()

        def _put_value(self, scope: str, key: str, value: bytes) -> None:
            if scope == PUT_WORKER_ADDRESSES:
                host, local_rank = key.split(":")
                addresses, secret = load_plain(base64.b64decode(value))
                driver.register_worker_server(host, int(local_rank), addresses, secret)
            else:
                super()._put_value(scope, key, value)

    return RendezvousHandler


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"a worker sent {module}.{name}, where only plain values are allowed")


def load_plain(data: bytes) -> Any:
    """Unpickle data that consists of numbers, texts and collections.

    Raises:
        pickle.UnpicklingError: the data contains any other object.
    """
    return _PlainUnpickler(io.BytesIO(data)).load()


class _Supervisor:
    """The connection to the supervisor. Any thread may send messages."""

    def __init__(self) -> None:
        self._connection = BlockingConnection(socket.socket(fileno=os.dup(0)))
        self._lock = threading.Lock()
        self.receive = self._connection.receive

    def send(self, operation: str, **values: Any) -> None:
        """Send a message. Ignore the error if the supervisor has ended, because :func:`main` detects the end of the
        connection.
        """
        with self._lock, contextlib.suppress(OSError):
            self._connection.send({"op": operation, **values})


def main(argv: list[str]) -> int:
    """Run Horovod's driver for one attempt of a job.

    Returns:
        The exit code, which is always 0.
    """
    parser = argparse.ArgumentParser(prog="python -m container elastic")
    parser.add_argument("--address", required=True, help="address at which workers reach the rendezvous")
    parser.add_argument("--interface", required=True, help="network interface or address of the workers")
    parser.add_argument("--initial", type=int, required=True, help="number of workers at the start")
    parser.add_argument("--planned", type=int, required=True, help="number of workers for which the job was planned")
    parser.add_argument("--least", type=int, required=True, help="minimum number of workers")
    parser.add_argument("--most", type=int, required=True, help="maximum number of workers")
    parser.add_argument("--timeout", type=float, required=True, help="seconds to wait for enough workers")
    parser.add_argument("--reset-limit", type=int, help="maximum number of repeated rendezvous")
    parser.add_argument("--warm", action="store_true", help="start workers before they get a rank")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="driver: %(message)s", stream=sys.stderr)
    logging.getLogger().setLevel(os.environ.get("FLEETFIT_ELASTIC_LOG", "ERROR"))
    supervisor = _Supervisor()
    fleet = ReportedWorkers()
    rendezvous = Rendezvous(arguments.address)
    driver = HorovodDriver(
        rendezvous,
        fleet,
        least=arguments.least,
        most=arguments.most,
        timeout=arguments.timeout,
        reset_limit=arguments.reset_limit,
        send=supervisor.send,
    )
    environment: dict[str, str] = {}  # filled below, because it contains the port
    workers = Workers(environment, supervisor.send)
    port = rendezvous.start(handler(driver, workers))
    environment.update(_environment(arguments, port))
    supervisor.send("listening", port=port)

    def drive() -> None:
        try:
            driver.start(arguments.initial, workers.run)
            driver.get_results()
        except Exception as error:  # noqa: BLE001 - reported to the supervisor, which ends the job
            driver.error = driver.error or str(error)
        finally:
            supervisor.send("finished", error=driver.error)

    threading.Thread(target=drive, daemon=True).start()
    while (message := supervisor.receive()) is not None:
        if message["op"] == "workers":
            fleet.set([str(worker) for worker in message["workers"]])
            driver.changed()
        elif message["op"] == "ended":
            workers.ended(str(message["worker"]), int(message["code"]))
        elif message["op"] == "stop":
            break
    return 0


def _environment(arguments: argparse.Namespace, port: int) -> dict[str, str]:
    """Return the variables that Horovod's C++ core reads, as ``horovod/runner/gloo_run.py`` sets them."""
    return {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": arguments.address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": arguments.interface,
        "HOROVOD_ELASTIC": "1",
        variables.ELASTIC_PLANNED: str(arguments.planned),
        # How long the rendezvous waits for a worker that has died. Warm workers have already imported everything by
        # then.
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "30" if arguments.warm else str(max(30, round(arguments.timeout))),
    }
