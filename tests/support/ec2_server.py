"""EC2's API on this machine: moto's server, with what moto lacks and AWS has.

A request that comes again with its ``ClientToken`` is answered as before; pools have a capacity, and what is not there
is said as CreateFleet says it; faults come where a test orders them.
"""

from __future__ import annotations

import functools
import io
import os
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import boto3
from werkzeug.serving import WSGIRequestHandler, make_server

ACCOUNT, REGION = "123456789012", "eu-west-1"
#: Credentials that mean nothing; they must not be seen anywhere.
KEY, SECRET = "AKIAFLEETFITTESTING1", "fleetfit-secret-that-nobody-may-see"

Form = dict[str, str]
#: Gets a request's parameters; returns an error's code, text and status, or None to let it pass.
Fault = Callable[[Form], "tuple[str, str, int] | None"]


def backend_of_region() -> Any:
    """Return moto's own EC2 of the region."""
    from moto.ec2.models import ec2_backends

    return ec2_backends[ACCOUNT][REGION]


class _Quiet(WSGIRequestHandler):
    def log(self, *arguments: Any) -> None:
        pass


class Ec2Server:
    """EC2 in one region.

    Args:
        network: The VPC's network, of 256 addresses; each of the two zones has a quarter of it.

    Attributes:
        faults: What is asked before each request, the first answer counts.
        capacity: What pools have left: (type, zone) -> instances; what is not named has enough.
        asked: The operations so far with their parameters.
        lost_answers: How many of CreateFleet's next answers are lost on their way.
        subnets: Zone -> its subnet.
    """

    def __init__(self, network: str = "10.201.7.0") -> None:
        self.faults: list[Fault] = []
        self.lost_answers = 0
        self.capacity: dict[tuple[str, str], int] = {}
        self.asked: list[tuple[str, Form]] = []
        self._answers: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._state = threading.RLock()  # moto has nothing for a moment while it is reset
        from moto.server import DomainDispatcherApplication, create_backend_app  # it takes a second to load

        self._app = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._serve, threaded=True, request_handler=_Quiet)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._network = network.rpartition(".")[0]
        self._session = boto3.session.Session()  # reading the services' models takes its time
        self.subnets: dict[str, str] = {}
        self.reset()

    def reset(self) -> None:
        """Forget everything, and have a VPC with a subnet in each zone."""
        for written in (self.faults, self.capacity, self.asked, self._answers, self.subnets):
            written.clear()
        with self._state:
            backend = backend_of_region()
            backend.reset()
            backend = backend_of_region()
            vpc = backend.create_vpc(f"{self._network}.0/24").id
            for number, zone in enumerate((f"{REGION}a", f"{REGION}b"), 1):
                made = backend.create_subnet(vpc, f"{self._network}.{64 * number}/26", availability_zone=zone)
                self.subnets[zone] = made.id
            self.image = next(iter(backend.amis))
        self.client("ssm").put_parameter(Name="/fleetfit/image", Value=self.image, Type="String", Overwrite=True)

    @functools.lru_cache(maxsize=8)  # noqa: B019 - it lives as long as the tests
    def client(self, service: str = "ec2") -> Any:
        """A client of its own."""
        return self._session.client(
            service,
            region_name=REGION,
            endpoint_url=self.url,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
        )

    @property
    def environment(self) -> dict[str, str]:
        """What a job's caller has set."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": REGION,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @property
    def instances(self) -> list[Any]:
        """moto's own objects of all instances."""
        with self._state:
            backend = backend_of_region()
            return [one for reservation in backend.reservations.values() for one in reservation.instances]

    def running(self) -> list[str]:
        """The instances that would be billed."""
        return [one.id for one in self.instances if one.state in ("pending", "running")]

    def end(self, instance: str, reason: str = "Client.InstanceInitiatedShutdown") -> None:
        """End an instance as its own shutdown does, or EC2."""
        with self._state:
            backend_of_region().terminate_instances([instance])
            for one in self.instances:
                if one.id == instance:
                    one.state_reason.code = reason

    def count(self, operation: str) -> int:
        """How often an operation was asked for."""
        return sum(name == operation for name, _ in self.asked)

    def refuse(self, operation: str, code: str, *, times: int = 1, status: int = 400) -> None:
        """Answer an operation with an error some times."""
        left = [times]

        def fault(form: Form) -> tuple[str, str, int] | None:
            if form["Action"] != operation or left[0] == 0:
                return None
            left[0] -= 1
            return code, f"{operation} is refused by the test.", status

        self.faults.append(fault)

    def close(self) -> None:
        """End it, and forget everything."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        with self._state:
            backend_of_region().reset()

    # --- requests ---

    def _serve(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        form = dict(urllib.parse.parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
        if "Action" not in form:
            return self._pass_on(environ, start, body)
        with self._lock:
            self.asked.append((form["Action"], form))
            faults = list(self.faults)
        for fault in faults:
            if (found := fault(form)) is not None:
                code, text, status = found
                return _reply(start, status, _error(code, text))
        if form["Action"] != "CreateFleet":
            return self._pass_on(environ, start, body)
        with self._lock:  # one at a time, as a token may come twice at once
            return [self._create_fleet(environ, start, form)]

    def _pass_on(self, environ: dict[str, Any], start: Any, body: bytes) -> Iterable[bytes]:
        environ["wsgi.input"] = io.BytesIO(body)
        environ["CONTENT_LENGTH"] = str(len(body))
        with self._state:
            return list(self._app(environ, start))

    def _create_fleet(self, environ: dict[str, Any], start: Any, form: Form) -> bytes:
        token = form.get("ClientToken", "")
        if token in self._answers:
            return _reply(start, 200, self._answers[token])[0]
        total = int(form["TargetCapacitySpecification.TotalTargetCapacity"])
        pools = _overrides(form)
        zones = {subnet: zone for zone, subnet in self.subnets.items()}
        left = {pool: self.capacity.get((pool[0], zones[pool[1]]), 1 << 30) for pool in pools}
        chosen = max(pools, key=lambda pool: left[pool])
        count = min(total, left[chosen])
        least = max(int(form.get(f"{kind}.MinTargetCapacity", 0)) for kind in ("SpotOptions", "OnDemandOptions"))
        if count < max(1, min(least, total)):
            count = 0
        errors = "".join(
            f"<item><errorCode>InsufficientInstanceCapacity</errorCode><errorMessage>There is no Spot capacity "
            f"available that matches your request.</errorMessage><lifecycle>spot</lifecycle>"
            f"<launchTemplateAndOverrides><overrides><instanceType>{type_}</instanceType>"
            f"<availabilityZone>{zones[subnet]}</availabilityZone></overrides></launchTemplateAndOverrides></item>"
            for type_, subnet in pools
            if left[type_, subnet] < total
        )
        if count == 0:
            answer = (
                '<CreateFleetResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>r</requestId>'
                f"<fleetId>fleet-0</fleetId><errorSet>{errors}</errorSet><fleetInstanceSet/></CreateFleetResponse>"
            ).encode()
            self._answers[token] = answer
            return _reply(start, 200, answer)[0]
        if chosen in left and left[chosen] < 1 << 30:
            self.capacity[chosen[0], zones[chosen[1]]] -= count
        body = urllib.parse.urlencode(_narrowed(form, pools.index(chosen) + 1, count)).encode()
        told: list[Any] = []
        answer = b"".join(self._pass_on(environ, lambda status, headers, *more: told.append(status), body))
        assert told[0].startswith("200"), answer
        if errors:
            answer = re.sub(
                rb"<errorSet\s*/>|(?=</CreateFleetResponse>)",
                f"<errorSet>{errors}</errorSet>".encode(),
                answer,
                count=1,
            )
        self._answers[token] = answer
        if self.lost_answers:
            self.lost_answers -= 1
            return _reply(start, 500, _error("InternalError", "An internal error has occurred."))[0]
        return _reply(start, 200, answer)[0]


def _overrides(form: Mapping[str, str]) -> list[tuple[str, str]]:
    found = []
    number = 1
    while (type_ := form.get(f"LaunchTemplateConfigs.1.Overrides.{number}.InstanceType")) is not None:
        found.append((type_, form[f"LaunchTemplateConfigs.1.Overrides.{number}.SubnetId"]))
        number += 1
    return found


def _narrowed(form: Form, number: int, count: int) -> Form:
    """The request of as many hosts from one of its pools."""
    start = "LaunchTemplateConfigs.1.Overrides."
    kept = {name: value for name, value in form.items() if not name.startswith(start)}
    for name, value in form.items():
        if name.startswith(f"{start}{number}."):
            kept[name.replace(f"{start}{number}.", f"{start}1.", 1)] = value
    place = "TargetCapacitySpecification."
    on_demand = min(int(form.get(f"{place}OnDemandTargetCapacity", 0)), count)
    kept |= {
        f"{place}TotalTargetCapacity": str(count),
        f"{place}OnDemandTargetCapacity": str(on_demand),
        f"{place}SpotTargetCapacity": str(count - on_demand),
    }
    return kept


def _error(code: str, text: str) -> bytes:
    return (
        f"<Response><Errors><Error><Code>{code}</Code><Message>{text}</Message></Error></Errors>"
        "<RequestID>r</RequestID></Response>"
    ).encode()


def _reply(start: Any, status: int, body: bytes) -> list[bytes]:
    start(
        f"{status} {'OK' if status == 200 else 'Error'}",
        [("Content-Type", "text/xml"), ("Content-Length", str(len(body)))],
    )
    return [body]
