"""Build the requests to EC2 and read EC2's answers, with pure functions.

EC2 answers a request for a fleet of type ``instant`` only once. The answer contains the launched instances. For each
pool (an instance type in a zone) without a launched instance, the answer contains the reason. The spot requests of such
a fleet are one-time requests, so EC2 does not launch an interrupted instance again.
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

#: The tags of all created resources: the job, the fleet (one for each start of a supervisor), and the owner.
JOB_TAG, FLEET_TAG, OWNER_TAG = "fleetfit:job", "fleetfit:fleet", "fleetfit:owner"
#: The file on a host that contains the end of the host's lease, in seconds since the host's boot. The ssh session
#: extends the lease.
LEASE = "/run/fleetfit/until"

#: Maximum number of pools in a fleet request.
_POOLS = 300
#: Delay until capacity is requested again, in seconds: the first one, which doubles each time, and the longest.
_FIRST_WAIT_S, _LONGEST_WAIT_S = 5.0, 60.0
_GONE_STATES = ("shutting-down", "terminated")
#: Error codes for missing capacity and too low prices. Waiting may help.
_LACKING = re.compile(
    r"Insufficient\w*Capacity\w*|InsufficientFreeAddressesInSubnet|UnfulfillableCapacity|Spot(Max|Min)PriceTooLow"
    r"|MaxSpotFleetRequestCountExceeded|Resource\w*LimitExceeded|RequestResourceCountExceeded"
)
#: Error codes for requests that EC2 throttled or could not process. Waiting may help. The codes say nothing about the
#: capacity.
_FAILED = re.compile(
    r"(Concurrent)?Request\w*LimitExceeded|\w*Throttl\w*|SlowDown|(Server\.)?Internal(Error|Failure)"
    r"|(Service)?Unavailable"
)
#: Error codes for the account's limits. Only ending other instances or a higher quota helps.
_QUOTAS = re.compile(r"(Vcpu|Instance|Address|Volume)LimitExceeded|\w*SpotInstanceCount(Limit)?Exceeded")


class Lifecycle(enum.Enum):
    """The purchasing option of a host."""

    SPOT = "spot"
    ON_DEMAND = "on-demand"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Instance:
    """An instance as EC2 describes it.

    Attributes:
        id: The id of the instance.
        type: The instance type.
        zone: The availability zone.
        state: The state of the instance: ``pending``, ``running`` and so on.
        lifecycle: The purchasing option.
        launched: The time of the launch, in seconds since the epoch.
        ended: The time when the end of the instance was first detected, in seconds since the epoch. None while it is
            running.
        private_address: The address for the other hosts, or "" if the instance has none.
        public_address: The public address, or "" if the instance has none.
        reason: EC2's code for the reason of the state.
        tags: The tags of the instance.
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
        """Create an instance from an entry in the response of ``DescribeInstances``."""
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
        """Return whether the instance has ended or is being terminated."""
        return self.state in _GONE_STATES

    @property
    def interrupted(self) -> bool:
        """Return whether EC2 has terminated the spot instance to reclaim its capacity."""
        return self.gone and self.reason in ("Server.SpotInstanceTermination", "Server.SpotInstanceShutdown")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shortage:
    """The reason why a pool launched no instance. A pool is an instance type in a zone.

    Attributes:
        code: EC2's error code.
        text: EC2's message.
        type: The instance type, or "" if EC2 names no type.
        zone: The zone, or "" if EC2 names no zone.
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
        """Return whether the same request may succeed after a wait. Return False for unknown error codes."""
        return self.of_request or _LACKING.fullmatch(self.code) is not None

    @property
    def of_request(self) -> bool:
        """Return whether EC2 throttled the request or could not process it.

        Such an error says nothing about the capacity. The same request may succeed later.
        """
        return _FAILED.fullmatch(self.code) is not None

    def explain(self) -> str:
        """Return why no instances can be launched, with the remedy."""
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
    """The result of a request for instances.

    Attributes:
        launched: The ids of the launched instances.
        shortages: The reasons why EC2 launched no more instances.
        failed: Whether EC2 throttled the request or could not process it. In this case, EC2 may have launched instances
            that are not in ``launched``.
    """

    launched: tuple[str, ...] = ()
    shortages: tuple[Shortage, ...] = ()
    failed: bool = False

    @classmethod
    def of(cls, response: Mapping[str, Any]) -> FleetAnswer:
        """Create an answer from the response of ``CreateFleet``.

        If the response contains fewer instances than requested, the response also contains the reasons.
        """
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
        """Return a reason that waiting does not resolve. Return None if instances were launched or waiting may help."""
        if self.launched or any(shortage.passes for shortage in self.shortages):
            return None
        return next(iter(self.shortages), None)

    def __str__(self) -> str:
        """Return the list of the pools that launched no instances, for messages."""
        texts = [str(shortage) for shortage in self.shortages]
        more = [f"and {len(texts) - 4} more pools"] if len(texts) > 4 else []
        return ", ".join([*texts[:4], *more]) or "no reason given"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """A search for hosts, which sends EC2 a sequence of requests. The first request follows the user's options exactly.

    Each later request permits more combinations of instance types and purchasing options.

    Attributes:
        hosts: The number of hosts to launch.
        types: The instance types. The job's own type is the first one.
        places: The availability zones, each with the id of its subnet or None.
        spot: Whether to use spot capacity.
        on_demand_base: The number of on-demand hosts if the other hosts use spot capacity.
        fallback: Whether to use on-demand hosts if EC2 has no spot capacity.
        together: Whether the job needs all hosts at its start. EC2 then launches either all or none, in one zone.
        max_total_price: The maximum total price of the spot hosts in US dollars per hour, or None for no limit.
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
        """Return the arguments of the ``CreateFleet`` requests of one pass.

        Each request permits more combinations of instance types and purchasing options than the request before.

        Args:
            template: The id of the launch template.
            tags: The tags of the fleet and its instances.
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
        """Return two values for each request: the number of on-demand hosts, and whether all hosts must have the same
        instance type.
        """
        base = min(self.on_demand_base, self.hosts) if self.spot else self.hosts
        narrow = [(base, True)] if self._gang and len(self.types) > 1 else []
        wide = [(self.hosts, False)] if self.spot and self.fallback and base < self.hosts else []
        return [*narrow, (base, False), *wide]

    def _places(self, on_demand: int) -> list[tuple[tuple[str, str | None], ...]]:
        """Return the zones of each request.

        A gang is a set of hosts that must start together, in one zone. A gang with both spot hosts and on-demand hosts
        needs one request for each zone. In a single request, EC2 might choose different zones for the two kinds of
        hosts.
        """
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
    """Return the delay before a pass in seconds.

    The delay is random, so that waiting jobs do not send their requests at the same time.

    Args:
        pass_: The number of the pass, from 1.
        chance: A number from 0 to 1 to use instead of a random number.
    """
    seconds = min(_FIRST_WAIT_S * 2.0 ** min(pass_ - 1, 10), _LONGEST_WAIT_S)
    return seconds * (0.75 + 0.5 * (random.random() if chance is None else chance))


# --- the hosts' configuration ---


def tags_of(job: str, fleet: str, owner: str, more: Mapping[str, str]) -> dict[str, str]:
    """Return the tags of all resources that are created for a job."""
    return {**more, "Name": more.get("Name", f"fleetfit {job}"), JOB_TAG: job, FLEET_TAG: fleet, OWNER_TAG: owner}


def tagged(kind: str, tags: Mapping[str, str]) -> dict[str, Any]:
    """Return the tag specification of a request that creates a resource.

    Args:
        kind: EC2's name of the kind of resource.
        tags: The tags.
    """
    return {"ResourceType": kind, "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}


def tags_in(entry: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags in EC2's description of a resource, by name."""
    return {tag["Key"]: tag["Value"] for tag in entry.get("Tags", ())}


def user_data(*, host_key: str, host_key_public: str, first_lease: float) -> str:
    """Return the cloud-init configuration for a host's first start, which is applied before the host's sshd runs.

    The configuration sets the host's key, so that the first ssh connection can be verified. The configuration also
    starts the timer that shuts the host down when the host's lease has ended.

    Args:
        host_key: The private host key of all hosts of the fleet, in OpenSSH's format.
        host_key_public: The public key that belongs to ``host_key``.
        first_lease: The number of seconds until the host shuts down if no connection is made.
    """
    settings = {
        "bootcmd": [["sh", "-c", timer(first_lease)]],
        "ssh_deletekeys": True,
        "ssh_keys": {"ed25519_private": host_key, "ed25519_public": host_key_public},
        "ssh_pwauth": False,
    }
    return f"#cloud-config\n{json.dumps(settings, indent=1)}\n"  # valid as YAML, too


def timer(first_lease: float) -> str:
    """Return the shell command that shuts a machine down when its lease has ended.

    Args:
        first_lease: The length of the lease until the first connection, in seconds from now.
    """
    folder = LEASE.rpartition("/")[0]
    return (
        f"mkdir -p {folder}; chmod 1777 {folder}; "  # the login user is not root; the machine has no other users
        "read -r now rest < /proc/uptime; "
        f"first=$((${{now%%.*}} + {round(first_lease)})); "
        '(trap "" HUP; while sleep 1; do read -r now rest < /proc/uptime; '
        f"read -r until < {LEASE} || until=$first; "
        'case "$until" in ""|*[!0-9]*) until=$first;; esac; '
        'if [ "${now%%.*}" -ge "$until" ]; then shutdown -h now || poweroff -f; fi; '
        "done) </dev/null >/dev/null 2>&1 &"
    )


#: The script that extends the lease, run by ``sh -c`` in an ssh session: each input line is the number of seconds that
#: the host may run from now. The file is replaced as a whole, so the timer never reads half a number.
EXTEND = (
    'echo "$0"; while read -r seconds; do read -r now rest < /proc/uptime; '
    f"echo $((${{now%%.*}} + seconds)) > {LEASE}.new && mv -f {LEASE}.new {LEASE}; done"
)


def template_data(
    options: Ec2Options, *, image: str, root_device: str, name: str, group: str, user_data: str, tags: Mapping[str, str]
) -> dict[str, Any]:
    """Return ``LaunchTemplateData``, which contains the settings that all hosts of a fleet share.

    Args:
        options: The EC2 options of the job.
        image: The id of the image.
        root_device: The name of the image's root device.
        name: The name of the key pair.
        group: The id of the security group.
        user_data: The result of :func:`user_data`.
        tags: The tags of all resources that are created with an instance. The resources have these tags from the start.
    """
    kinds = ("instance", "volume", "network-interface")
    data: dict[str, Any] = {
        "ImageId": image,
        "KeyName": name,
        "SecurityGroupIds": [group],
        "UserData": base64.b64encode(user_data.encode()).decode(),
        "InstanceInitiatedShutdownBehavior": "terminate",
        # Only IMDSv2; a container on the host is one hop farther away.
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 2, "HttpEndpoint": "enabled"},
        "TagSpecifications": [tagged(kind, tags) for kind in kinds],
    }
    if options.volume_gb is not None:
        disk = {"VolumeSize": options.volume_gb, "VolumeType": "gp3", "DeleteOnTermination": True, "Encrypted": True}
        data["BlockDeviceMappings"] = [{"DeviceName": root_device, "Ebs": disk}]
    if (profile := options.instance_profile) is not None:
        data["IamInstanceProfile"] = {"Arn" if profile.startswith("arn:") else "Name": profile}
    return data
