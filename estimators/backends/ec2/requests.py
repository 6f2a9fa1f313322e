"""What EC2 is asked for, and what its answers say. Pure.

A fleet of type ``instant`` is one answer: what there is now, and for what is lacking the reason. Its spot requests are
one-time: what EC2 has taken back does not come again by itself and bill.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

#: The tags of everything that is made: the job, the fleet (one for each start of a supervisor), and who made it.
JOB_TAG, FLEET_TAG, OWNER_TAG = "fleetfit:job", "fleetfit:fleet", "fleetfit:owner"
#: Where a host keeps until when it may run: seconds since its boot. Whoever is logged in moves it on.
LEASE = "/run/fleetfit/until"

#: A fleet's request takes so many pools.
_POOLS = 300
#: How long to wait before capacity is asked for again, in seconds: doubled each time, up to the last.
_FIRST_WAIT_S, _LONGEST_WAIT_S = 5.0, 60.0


class Lifecycle(enum.Enum):
    """How a host is paid for."""

    SPOT = "spot"
    ON_DEMAND = "on-demand"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pool:
    """Where capacity may come from: one instance type in one zone.

    Attributes:
        type: The instance type.
        zone: The availability zone.
        subnet: The subnet in it; None: the zone's default one.
    """

    type: str
    zone: str
    subnet: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is asked for at once.

    Attributes:
        hosts: How many hosts.
        on_demand: How many of them on demand.
        together: Whether they train together from the start: all or none, in one zone.
        one_type: Whether they must be of one type.
        max_total_price: What the spot hosts may cost together in an hour, in US dollars.
    """

    hosts: int
    on_demand: int = 0
    together: bool = False
    one_type: bool = False
    max_total_price: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Launched:
    """An instance that EC2 has launched."""

    id: str
    type: str
    lifecycle: Lifecycle


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shortage:
    """Why a pool gave nothing.

    Attributes:
        code: EC2's code.
        text: What it says.
        type: The instance type; "" where it does not say.
        zone: The zone; "" where it does not say.
    """

    code: str
    text: str
    type: str = ""
    zone: str = ""

    def __str__(self) -> str:
        place = " in ".join(filter(None, (self.type, self.zone)))
        return f"{place}: {self.code}" if place else self.code


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """What came of a request."""

    launched: tuple[Launched, ...] = ()
    shortages: tuple[Shortage, ...] = ()

    @property
    def hopeless(self) -> Shortage | None:
        """Return a shortage that waiting does not end, where all are such; else None."""
        if self.launched or not self.shortages:
            return None
        if any(kind_of(shortage.code) is ErrorMeaning.PASSES for shortage in self.shortages):
            return None
        return self.shortages[0]


class ErrorMeaning(enum.Enum):
    """What an error code of EC2's means for who waits for hosts."""

    PASSES = "passes"
    QUOTA = "quota"
    FINAL = "final"


#: Capacity, prices, and requests that are too many at once: they pass.
_PASSING = frozenset(
    {
        "InsufficientInstanceCapacity", "InsufficientHostCapacity", "InsufficientReservedInstanceCapacity",
        "InsufficientCapacity", "InsufficientCapacityOnHost", "InsufficientFreeAddressesInSubnet",
        "UnfulfillableCapacity", "SpotMaxPriceTooLow", "SpotMinPriceTooLow", "MaxSpotFleetRequestCountExceeded",
        "RequestLimitExceeded", "Throttling", "ThrottlingException", "RequestThrottled", "ResourceCountLimitExceeded",
        "RequestResourceCountExceeded", "EC2ThrottledException", "SlowDown", "ConcurrentRequestLimitExceeded",
        "InternalError", "InternalFailure", "ServiceUnavailable", "Unavailable", "Server.InternalError",
    }
)  # fmt: skip
#: The account's limits: only another job's end, or AWS, raises what is left.
_QUOTAS = frozenset(
    {"VcpuLimitExceeded", "InstanceLimitExceeded", "MaxSpotInstanceCountExceeded", "SpotInstanceCountLimitExceeded",
     "AddressLimitExceeded", "VolumeLimitExceeded"}
)  # fmt: skip


def kind_of(code: str) -> ErrorMeaning:
    """Say whether a failure passes by itself; codes that are not known do not."""
    if code in _PASSING:
        return ErrorMeaning.PASSES
    return ErrorMeaning.QUOTA if code in _QUOTAS else ErrorMeaning.FINAL


def explain(shortage: Shortage) -> str:
    """Say why hosts cannot be had, and what to do."""
    text = f"{shortage}: {shortage.text}" if shortage.text else str(shortage)
    kind = kind_of(shortage.code)
    if kind is ErrorMeaning.QUOTA:
        return f"{text.rstrip('.')}. Ask for more under Service Quotas (EC2), end other instances, or name other types"
    if shortage.code.startswith("InvalidAMIID"):
        return f"{text.rstrip('.')}. Name an image of this region: backend_options={{'ami': …}}"
    if shortage.code in ("UnauthorizedOperation", "AccessDenied", "AuthFailure"):
        return f"{text.rstrip('.')}. docs/ec2.md lists the permissions that the caller needs"
    return text


def pools(types: Sequence[str], places: Iterable[tuple[str, str | None]]) -> tuple[Pool, ...]:
    """Return each type in each place (zone and subnet), as many as a request takes."""
    places = list(places)
    return tuple(Pool(type=type_, zone=zone, subnet=subnet) for type_ in types for zone, subnet in places)[:_POOLS]


def fleet_request(
    wanted: Wanted, pools: Sequence[Pool], *, template: str, tags: Mapping[str, str], token: str
) -> dict[str, Any]:
    """Return the arguments of ``CreateFleet``.

    Args:
        wanted: How many hosts, of what kind.
        pools: Where they may come from. Where hosts are together and of both kinds, of one zone: EC2 would choose a
            zone for each kind.
        template: The launch template's id.
        tags: The tags of fleet and instances.
        token: The request's own: asked for twice with the same one, EC2 launches once.
    """
    spot = wanted.hosts - wanted.on_demand
    overrides = [
        {"InstanceType": pool.type, **({"SubnetId": pool.subnet} if pool.subnet else {"AvailabilityZone": pool.zone})}
        for pool in pools
    ]
    request: dict[str, Any] = {
        "Type": "instant",
        "ClientToken": token,
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": {"LaunchTemplateId": template, "Version": "1"},
                "Overrides": overrides,
            }
        ],
        "TargetCapacitySpecification": {
            "TotalTargetCapacity": wanted.hosts,
            "OnDemandTargetCapacity": wanted.on_demand,
            "SpotTargetCapacity": spot,
            "DefaultTargetCapacityType": "spot" if spot else "on-demand",
        },
        "TagSpecifications": [{"ResourceType": kind, "Tags": tag_list(tags)} for kind in ("fleet", "instance")],
    }
    if spot:
        request["SpotOptions"] = {
            "AllocationStrategy": "price-capacity-optimized",
            "InstanceInterruptionBehavior": "terminate",
            **_bounds(wanted, spot),
        }
        if wanted.max_total_price is not None:
            request["SpotOptions"]["MaxTotalPrice"] = f"{wanted.max_total_price:.4f}"
    if wanted.on_demand:
        request["OnDemandOptions"] = {"AllocationStrategy": "lowest-price", **_bounds(wanted, wanted.on_demand)}
    return request


def _bounds(wanted: Wanted, count: int) -> dict[str, Any]:
    """All of a gang in one zone, or none of it."""
    if not wanted.together:
        return {}
    return {"SingleAvailabilityZone": True, "SingleInstanceType": wanted.one_type, "MinTargetCapacity": count}


def read_answer(response: Mapping[str, Any]) -> Answer:
    """Read what ``CreateFleet`` has answered: a success may hold less than was asked for, with the reasons."""
    launched = [
        Launched(
            id=instance_id,
            type=str(group.get("InstanceType") or _override(group).get("InstanceType") or ""),
            lifecycle=Lifecycle.SPOT if group.get("Lifecycle") == "spot" else Lifecycle.ON_DEMAND,
        )
        for group in response.get("Instances") or ()
        for instance_id in group.get("InstanceIds") or ()
    ]
    shortages = []
    for error in response.get("Errors") or ():
        override = _override(error)
        shortages.append(
            Shortage(
                code=str(error.get("ErrorCode") or "unknown"),
                text=str(error.get("ErrorMessage") or ""),
                type=str(override.get("InstanceType") or ""),
                zone=str(override.get("AvailabilityZone") or override.get("SubnetId") or ""),
            )
        )
    return Answer(launched=tuple(launched), shortages=tuple(dict.fromkeys(shortages)))


def _override(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (entry.get("LaunchTemplateAndOverrides") or {}).get("Overrides") or {}
    return found


# --- asking again ---


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """How hosts are looked for, round after round: first as they are wanted, then wider.

    Attributes:
        hosts: How many are wanted.
        spot: Whether spot capacity is.
        on_demand_base: How many of them are on demand all the same.
        fallback: Whether they may be on demand where there is no spot capacity.
        together: Whether they train together from the start.
        types: The instance types, the job's own first.
        places: Zones, each with its subnet if one was named.
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

    def rounds(self) -> tuple[tuple[Wanted, tuple[Pool, ...]], ...]:
        """Return the requests of one pass, each wider than the one before."""
        base = min(self.on_demand_base, self.hosts) if self.spot else self.hosts
        wanted = Wanted(
            hosts=self.hosts,
            on_demand=base,
            together=self.together and self.hosts > 1,
            max_total_price=self.max_total_price,
        )
        found = []
        if wanted.together and len(self.types) > 1:
            found += self._in_places(dataclasses.replace(wanted, one_type=True))
        found += self._in_places(wanted)
        if self.spot and self.fallback and base < self.hosts:
            found += self._in_places(dataclasses.replace(wanted, on_demand=self.hosts))
        return tuple(found)

    def _in_places(self, wanted: Wanted) -> list[tuple[Wanted, tuple[Pool, ...]]]:
        if wanted.together and 0 < wanted.on_demand < wanted.hosts:  # EC2 keeps each kind in a zone of its own
            return [(wanted, pools(self.types, [place])) for place in self.places]
        return [(wanted, pools(self.types, self.places))]


def wait_before(round_: int, *, chance: float | None = None) -> float:
    """Return how long to wait before the pass with a number from 1 on, in seconds; jobs that wait do not keep step."""
    seconds = min(_FIRST_WAIT_S * 2.0 ** min(round_ - 1, 10), _LONGEST_WAIT_S)
    return seconds * (0.75 + 0.5 * (random.random() if chance is None else chance))


# --- what hosts are like ---


def tags_of(job: str, fleet: str, owner: str, more: Mapping[str, str]) -> dict[str, str]:
    """Return the tags of everything that is made for a job."""
    return {**more, "Name": more.get("Name", f"fleetfit {job}"), JOB_TAG: job, FLEET_TAG: fleet, OWNER_TAG: owner}


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return tags in EC2's form."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


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
    *,
    image: str,
    key_name: str,
    groups: Sequence[str],
    user_data: str,
    tags: Mapping[str, str],
    root_device: str | None = None,
    volume_gb: int | None = None,
    instance_profile: str | None = None,
) -> dict[str, Any]:
    """Return ``LaunchTemplateData``: everything that hosts of a fleet have in common.

    Args:
        image: The image's id.
        key_name: The key pair's name.
        groups: The security groups' ids.
        user_data: What :func:`user_data` gave.
        tags: The tags of what is made with an instance, so that nothing is there without them for a moment.
        root_device: The image's root device; with ``volume_gb``.
        volume_gb: Its size.
        instance_profile: The instance profile's name or ARN.
    """
    data: dict[str, Any] = {
        "ImageId": image,
        "KeyName": key_name,
        "SecurityGroupIds": list(groups),
        "UserData": base64.b64encode(user_data.encode()).decode(),
        "InstanceInitiatedShutdownBehavior": "terminate",
        # Only IMDSv2; a container on the host is one hop further.
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 2, "HttpEndpoint": "enabled"},
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": tag_list(tags)} for kind in ("instance", "volume", "network-interface")
        ],
    }
    if volume_gb is not None and root_device is not None:
        data["BlockDeviceMappings"] = [
            {
                "DeviceName": root_device,
                "Ebs": {"VolumeSize": volume_gb, "VolumeType": "gp3", "DeleteOnTermination": True, "Encrypted": True},
            }
        ]
    if instance_profile is not None:
        kind = "Arn" if instance_profile.startswith("arn:") else "Name"
        data["IamInstanceProfile"] = {kind: instance_profile}
    return data
