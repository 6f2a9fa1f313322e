"""What EC2 is asked for, and what its answers say. Pure.

A fleet of type ``instant`` is one answer: the instances that EC2 has launched, and for each pool that lacks capacity
the reason. Its spot requests are one-time: an instance that EC2 has interrupted is not launched again by itself.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import itertools
import json
import random
import re
from collections.abc import Iterable, Mapping
from typing import Any

from estimators.backends.ec2.options import Ec2Options

#: The tags of everything that is made: the job, the fleet (one for each start of a supervisor), and who made it.
JOB_TAG, FLEET_TAG, OWNER_TAG = "fleetfit:job", "fleetfit:fleet", "fleetfit:owner"
#: Where a host keeps until when it may run: seconds since its boot. Whoever is logged in moves it on.
LEASE = "/run/fleetfit/until"

#: A fleet's request takes so many pools.
_POOLS = 300
#: How long to wait before capacity is asked for again, in seconds: doubled each time, up to the last.
_FIRST_WAIT_S, _LONGEST_WAIT_S = 5.0, 60.0
_GONE_STATES = ("shutting-down", "terminated")
#: Codes of lacking capacity and of prices: they pass.
_LACKING = re.compile(
    r"Insufficient\w*Capacity\w*|InsufficientFreeAddressesInSubnet|UnfulfillableCapacity|Spot(Max|Min)PriceTooLow"
    r"|MaxSpotFleetRequestCountExceeded|Resource\w*LimitExceeded|RequestResourceCountExceeded"
)
#: Codes of requests that are too many at once or were not answered: they pass too, and say nothing of capacity.
_FAILED = re.compile(
    r"(Concurrent)?Request\w*LimitExceeded|\w*Throttl\w*|SlowDown|(Server\.)?Internal(Error|Failure)"
    r"|(Service)?Unavailable"
)
#: Codes of the account's limits: only the end of other instances, or AWS, raises what is left.
_QUOTAS = re.compile(r"(Vcpu|Instance|Address|Volume)LimitExceeded|\w*SpotInstanceCount(Limit)?Exceeded")


class Lifecycle(enum.Enum):
    """How a host is paid for."""

    SPOT = "spot"
    ON_DEMAND = "on-demand"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Instance:
    """An instance as EC2 describes it.

    Attributes:
        id: Its id.
        type: Its type.
        zone: Its zone.
        state: ``pending``, ``running`` and so on.
        lifecycle: How it is paid for.
        launched: When it was launched, in seconds since the epoch.
        ended: When its end was seen; None while it runs.
        private_address: Its address among the hosts.
        public_address: Its address from outside, if it has one.
        reason: Why it is in its state, EC2's code.
        tags: Its tags.
    """

    id: str
    type: str
    zone: str
    state: str
    lifecycle: Lifecycle
    launched: float
    ended: float | None = None
    private_address: str = ""
    public_address: str = ""
    reason: str = ""
    tags: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Instance:
        """Read an entry of ``DescribeInstances``."""
        return cls(
            id=entry["InstanceId"],
            type=entry["InstanceType"],
            zone=entry["Placement"]["AvailabilityZone"],
            state=entry["State"]["Name"],
            lifecycle=Lifecycle.SPOT if entry.get("InstanceLifecycle") == "spot" else Lifecycle.ON_DEMAND,
            launched=entry["LaunchTime"].timestamp(),
            private_address=entry.get("PrivateIpAddress", ""),
            public_address=entry.get("PublicIpAddress", ""),
            reason=entry.get("StateReason", {}).get("Code", ""),
            tags=tags_in(entry),
        )

    @property
    def gone(self) -> bool:
        """Return whether it has ended, or is about to."""
        return self.state in _GONE_STATES

    @property
    def interrupted(self) -> bool:
        """Return whether EC2 has ended it to have its capacity back."""
        return self.gone and self.reason in ("Server.SpotInstanceTermination", "Server.SpotInstanceShutdown")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shortage:
    """Why a pool gave nothing.

    Attributes:
        code: EC2's code.
        text: EC2's message.
        type: The instance type; "" where EC2 does not name one.
        zone: The zone; "" where EC2 does not name one.
    """

    code: str
    text: str
    type: str = ""
    zone: str = ""

    def __str__(self) -> str:
        place = " in ".join(filter(None, (self.type, self.zone)))
        return f"{place}: {self.code}" if place else self.code

    @property
    def passes(self) -> bool:
        """Return whether it ends by itself; codes that are not known do not."""
        return self.of_request or _LACKING.fullmatch(self.code) is not None

    @property
    def of_request(self) -> bool:
        """Return whether only the request has failed: sent again, it may be answered."""
        return _FAILED.fullmatch(self.code) is not None

    def explain(self) -> str:
        """Say why hosts cannot be had, and what to do."""
        text = f"{self}: {self.text}".rstrip(".") if self.text else str(self)
        if _QUOTAS.fullmatch(self.code):
            return f"{text}. Ask for more under Service Quotas (EC2), end other instances, or name other types"
        if self.code.startswith("InvalidAMIID"):
            return f"{text}. Name an image of this region: backend_options={{'ami': …}}"
        if self.code in ("UnauthorizedOperation", "AccessDenied", "AuthFailure"):
            return f"{text}. docs/ec2.md lists the permissions that the caller needs"
        return text


@dataclasses.dataclass(frozen=True, kw_only=True)
class FleetAnswer:
    """What came of a request.

    Attributes:
        launched: The instances that were launched, by their ids.
        shortages: Why there are no more of them.
        failed: Whether the request has failed: nobody knows what came of it, nor what capacity there is.
    """

    launched: tuple[str, ...] = ()
    shortages: tuple[Shortage, ...] = ()
    failed: bool = False

    @classmethod
    def of(cls, response: Mapping[str, Any]) -> FleetAnswer:
        """Read what ``CreateFleet`` has answered: a success may hold less than was asked for, with the reasons."""
        shortages = []
        for error in response.get("Errors") or ():
            override = error.get("LaunchTemplateAndOverrides", {}).get("Overrides", {})
            shortages.append(
                Shortage(
                    code=error.get("ErrorCode", "unknown"),
                    text=error.get("ErrorMessage", ""),
                    type=override.get("InstanceType", ""),
                    zone=override.get("AvailabilityZone") or override.get("SubnetId", ""),
                )
            )
        return cls(
            launched=tuple(one for group in response.get("Instances") or () for one in group.get("InstanceIds", ())),
            shortages=tuple(dict.fromkeys(shortages)),
        )

    @property
    def hopeless(self) -> Shortage | None:
        """Return a shortage that waiting does not end, where all are such; else None."""
        if self.launched or any(shortage.passes for shortage in self.shortages):
            return None
        return next(iter(self.shortages), None)

    def __str__(self) -> str:
        """Say what is lacking."""
        texts = [str(shortage) for shortage in self.shortages]
        more = [f"and {len(texts) - 4} more pools"] if len(texts) > 4 else []
        return ", ".join([*texts[:4], *more]) or "no reason given"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """How hosts are looked for, request after request: first as they are wanted, then wider.

    Attributes:
        hosts: How many are wanted.
        types: The instance types, the job's own first.
        places: Zones, each with its subnet if one was named.
        spot: Whether spot capacity is wanted.
        on_demand_base: How many of them are on demand all the same.
        fallback: Whether they may be on demand where there is no spot capacity.
        together: Whether they train together from the start: all or none, in one zone.
        max_total_price: What the spot hosts may cost together in an hour, in US dollars.
    """

    hosts: int
    types: tuple[str, ...]
    places: tuple[tuple[str, str | None], ...]
    spot: bool = False
    on_demand_base: int = 0
    fallback: bool = False
    together: bool = False
    max_total_price: float | None = None

    def requests(self, template: str, tags: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return the arguments of ``CreateFleet`` in one pass, each request wider than the one before.

        Args:
            template: The launch template's id.
            tags: The tags of fleet and instances.
        """
        launch = {"LaunchTemplateId": template, "Version": "1"}
        common = {"Type": "instant", "TagSpecifications": [tagged("fleet", tags), tagged("instance", tags)]}
        return [
            {
                **common,
                "LaunchTemplateConfigs": [{"LaunchTemplateSpecification": launch, "Overrides": self._pools(places)}],
                **self._capacity(on_demand, one_type=one_type),
            }
            for on_demand, one_type in self._passes()
            for places in self._places(on_demand)
        ]

    @property
    def _gang(self) -> bool:
        return self.together and self.hosts > 1

    def _passes(self) -> list[tuple[int, bool]]:
        """Return how many hosts are on demand, and whether all are of one type, in each request."""
        base = min(self.on_demand_base, self.hosts) if self.spot else self.hosts
        narrow = [(base, True)] if self._gang and len(self.types) > 1 else []
        wide = [(self.hosts, False)] if self.spot and self.fallback and base < self.hosts else []
        return [*narrow, (base, False), *wide]

    def _places(self, on_demand: int) -> list[tuple[tuple[str, str | None], ...]]:
        """Return the zones of each request: EC2 would choose one for each kind of a gang that is of both kinds."""
        both = self._gang and 0 < on_demand < self.hosts
        return [(place,) for place in self.places] if both else [self.places]

    def _pools(self, places: Iterable[tuple[str, str | None]]) -> list[dict[str, str]]:
        return [
            {"InstanceType": type_, **({"SubnetId": subnet} if subnet else {"AvailabilityZone": zone})}
            for type_, (zone, subnet) in itertools.product(self.types, places)
        ][:_POOLS]

    def _capacity(self, on_demand: int, *, one_type: bool) -> dict[str, Any]:
        spot = self.hosts - on_demand
        gang = {"SingleAvailabilityZone": True, "SingleInstanceType": one_type} if self._gang else {}
        least = ("MinTargetCapacity",) if self._gang else ()
        asked: dict[str, Any] = {
            "TargetCapacitySpecification": {
                "TotalTargetCapacity": self.hosts,
                "OnDemandTargetCapacity": on_demand,
                "SpotTargetCapacity": spot,
                "DefaultTargetCapacityType": "spot" if spot else "on-demand",
            }
        }
        if spot:
            strategy = {"AllocationStrategy": "price-capacity-optimized", "InstanceInterruptionBehavior": "terminate"}
            asked["SpotOptions"] = {**strategy, **gang, **dict.fromkeys(least, spot)}
            if self.max_total_price is not None:
                asked["SpotOptions"]["MaxTotalPrice"] = f"{self.max_total_price:.4f}"
        if on_demand:
            asked["OnDemandOptions"] = {"AllocationStrategy": "lowest-price", **gang, **dict.fromkeys(least, on_demand)}
        return asked


def wait_before(pass_: int, *, chance: float | None = None) -> float:
    """Return how long to wait before the pass with a number from 1 on, in seconds; jobs that wait do not keep step."""
    seconds = min(_FIRST_WAIT_S * 2.0 ** min(pass_ - 1, 10), _LONGEST_WAIT_S)
    return seconds * (0.75 + 0.5 * (random.random() if chance is None else chance))


# --- what hosts are like ---


def tags_of(job: str, fleet: str, owner: str, more: Mapping[str, str]) -> dict[str, str]:
    """Return the tags of everything that is made for a job."""
    return {**more, "Name": more.get("Name", f"fleetfit {job}"), JOB_TAG: job, FLEET_TAG: fleet, OWNER_TAG: owner}


def tagged(kind: str, tags: Mapping[str, str]) -> dict[str, Any]:
    """Return the specification of the tags of a resource that is made."""
    return {"ResourceType": kind, "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}


def tags_in(entry: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags of a resource as EC2 describes it."""
    return {tag["Key"]: tag["Value"] for tag in entry.get("Tags", ())}


def user_data(*, host_key: str, host_key_public: str, first_lease: float) -> str:
    """Return what cloud-init does at a host's first start, before its sshd runs.

    It sets the host's key, so that the first connection is verified already, and starts the timer that shuts the host
    down when nobody is connected.

    Args:
        host_key: The private key that all hosts of the fleet show, in OpenSSH's form.
        host_key_public: Its public half.
        first_lease: How long the first connection is waited for, in seconds.
    """
    settings = {
        "bootcmd": [["sh", "-c", timer(first_lease)]],
        "ssh_deletekeys": True,
        "ssh_keys": {"ed25519_private": host_key, "ed25519_public": host_key_public},
        "ssh_pwauth": False,
    }
    return f"#cloud-config\n{json.dumps(settings, indent=1)}\n"  # JSON is YAML


def timer(first_lease: float) -> str:
    """Return the shell's words that shut a machine down when its lease is over: time since its boot, not a clock's."""
    folder = LEASE.rpartition("/")[0]
    return (
        f"mkdir -p {folder}; chmod 1777 {folder}; "  # who logs in is not root; nobody else is on the machine
        "read -r now rest < /proc/uptime; "
        f"first=$((${{now%%.*}} + {round(first_lease)})); "
        '(trap "" HUP; while sleep 1; do read -r now rest < /proc/uptime; '
        f"read -r until < {LEASE} || until=$first; "
        'case "$until" in ""|*[!0-9]*) until=$first;; esac; '
        'if [ "${now%%.*}" -ge "$until" ]; then shutdown -h now || poweroff -f; fi; '
        "done) </dev/null >/dev/null 2>&1 &"
    )


#: What is run on a host by whoever is connected, ``sh -c``: each line that comes in is for how many seconds it may run
#: on from now. The file is replaced as a whole: the timer never reads half a number.
EXTEND = (
    'echo "$0"; while read -r seconds; do read -r now rest < /proc/uptime; '
    f"echo $((${{now%%.*}} + seconds)) > {LEASE}.new && mv -f {LEASE}.new {LEASE}; done"
)


def template_data(
    options: Ec2Options, *, image: str, root_device: str, name: str, group: str, user_data: str, tags: Mapping[str, str]
) -> dict[str, Any]:
    """Return ``LaunchTemplateData``: everything that hosts of a fleet have in common.

    Args:
        options: What the job asks for.
        image: The image's id.
        root_device: The image's root device.
        name: The key pair's name.
        group: The security group's id.
        user_data: The result of :func:`user_data`.
        tags: The tags of what is made with an instance, so that nothing is there without them for a moment.
    """
    kinds = ("instance", "volume", "network-interface")
    data: dict[str, Any] = {
        "ImageId": image,
        "KeyName": name,
        "SecurityGroupIds": [group],
        "UserData": base64.b64encode(user_data.encode()).decode(),
        "InstanceInitiatedShutdownBehavior": "terminate",
        # Only IMDSv2; a container on the host is one hop further.
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 2, "HttpEndpoint": "enabled"},
        "TagSpecifications": [tagged(kind, tags) for kind in kinds],
    }
    if options.volume_gb is not None:
        disk = {"VolumeSize": options.volume_gb, "VolumeType": "gp3", "DeleteOnTermination": True, "Encrypted": True}
        data["BlockDeviceMappings"] = [{"DeviceName": root_device, "Ebs": disk}]
    if (profile := options.instance_profile) is not None:
        data["IamInstanceProfile"] = {"Arn" if profile.startswith("arn:") else "Name": profile}
    return data
