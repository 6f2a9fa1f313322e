"""Build the requests to EC2 and read EC2's answers, with pure functions.

EC2 answers a request for a fleet of type ``instant`` only once. The answer contains the launched instances. For each
pool (an instance type in a zone) without a launched instance, the answer contains the reason. The spot requests of such
a fleet are one-time requests, so EC2 does not launch an interrupted instance again.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from container.contract.frozen import dataclass
from estimators.backends.ec2.options import Ec2Options
from estimators.backends.sagemaker import explaining

#: The tags of all created resources: the job, the fleet (one for each start of a supervisor), and the owner.
JOB_TAG, FLEET_TAG, OWNER_TAG = "fleetfit:job", "fleetfit:fleet", "fleetfit:owner"
#: The file on a host that contains the end of the host's lease, in seconds since the host's boot. The ssh session
#: extends the lease.
LEASE = "/run/fleetfit/until"

#: Maximum number of pools in a fleet request.
_POOLS = 300
#: Error codes for missing capacity and too low prices. Waiting may help.
_LACKING = re.compile(
    r"Insufficient\w*Capacity\w*|InsufficientFreeAddressesInSubnet|UnfulfillableCapacity|Spot(Max|Min)PriceTooLow"
    r"|MaxSpotFleetRequestCountExceeded|Resource\w*LimitExceeded|RequestResourceCountExceeded"
)
#: What the user can do about errors that waiting does not resolve, by a pattern of the error code.
_REMEDIES = {
    r"(Vcpu|Instance|Address|Volume)LimitExceeded|\w*SpotInstanceCount(Limit)?Exceeded": (
        "Ask for more under Service Quotas (EC2), end other instances, or name other types"
    ),
    r"InvalidAMIID.*": "Name an image of this region: backend_options={'ami': …}",
    r"UnauthorizedOperation|AccessDenied|AuthFailure": "docs/ec2.md lists the permissions that the caller needs",
}


@dataclasses.dataclass(kw_only=True)
class Instance:
    """An instance as EC2 describes it.

    Attributes:
        id: The id of the instance.
        type: The instance type.
        zone: The availability zone.
        state: The state of the instance: ``pending``, ``running`` and so on.
        spot: Whether the instance uses spot capacity. Otherwise, it is an on-demand instance.
        launched: The time of the launch, in seconds since the epoch.
        ended: The time when the end of the instance was first detected, in seconds since the epoch. None while it is
            running.
        private_address: The address for the other hosts, or "" if the instance has none.
        public_address: The public address, or "" if the instance has none.
        reason: EC2's code for the reason of the state.
    """

    id: str
    type: str
    zone: str
    state: str
    spot: bool
    launched: float
    ended: float | None = None
    private_address: str = ""
    public_address: str = ""
    reason: str = ""

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Instance:
        """Create an instance from an entry in the response of ``DescribeInstances``."""
        return cls(
            id=entry["InstanceId"],
            type=entry["InstanceType"],
            zone=entry["Placement"]["AvailabilityZone"],
            state=entry["State"]["Name"],
            spot=entry.get("InstanceLifecycle") == "spot",
            launched=entry["LaunchTime"].timestamp(),
            private_address=entry.get("PrivateIpAddress", ""),
            public_address=entry.get("PublicIpAddress", ""),
            reason=entry.get("StateReason", {}).get("Code", ""),
        )

    @property
    def pool(self) -> tuple[str, str]:
        """Return the instance type, and the zone for a spot instance or "" for an on-demand instance.

        This pair is the key of the instance's prices. See :data:`estimators.backends.ec2.prices.Prices`.
        """
        return self.type, self.zone if self.spot else ""

    @property
    def gone(self) -> bool:
        """Return whether the instance has ended or is being terminated."""
        return self.state in ("shutting-down", "terminated")

    @property
    def interrupted(self) -> bool:
        """Return whether EC2 has terminated the spot instance to reclaim its capacity."""
        return self.gone and self.reason in ("Server.SpotInstanceTermination", "Server.SpotInstanceShutdown")


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """The reason why EC2 refused a request, or why a pool launched no instance. A pool is an instance type in a zone.

    Attributes:
        code: EC2's error code, or the type of an exception without such a code.
        text: EC2's message.
        pool: The instance type and the zone, or "" if EC2 names none.
    """

    code: str
    text: str
    pool: str = ""

    @classmethod
    def of(cls, error: Exception) -> Refusal:
        """Create a refusal from the exception that a request to EC2 has raised."""
        return cls(code=explaining.code_of(error) or type(error).__name__, text=explaining.said_by(error))

    def __str__(self) -> str:
        return f"{self.pool}: {self.code}" if self.pool else self.code

    @property
    def lacks_capacity(self) -> bool:
        """Return whether EC2 has no capacity now, or only for a higher price."""
        return _LACKING.fullmatch(self.code) is not None

    @property
    def passes(self) -> bool:
        """Return whether the same request may succeed after a wait. Return False for unknown error codes."""
        return self.lacks_capacity or self.code in explaining.PASSING

    def explain(self) -> str:
        """Return the reason, followed by the remedy if one is known, without a full stop at the end."""
        text = f"{self}: {self.text}".rstrip(".") if self.text else str(self)
        remedies = (remedy for codes, remedy in _REMEDIES.items() if re.fullmatch(codes, self.code))
        return ". ".join([text, *remedies])


@dataclass(frozen=True, kw_only=True)
class FleetAnswer:
    """The result of a request for instances.

    Attributes:
        launched: The ids of the launched instances.
        refusals: The reasons why EC2 launched no more instances.
    """

    launched: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()

    @classmethod
    def of(cls, response: Mapping[str, Any]) -> FleetAnswer:
        """Create an answer from the response of ``CreateFleet``.

        If the response contains fewer instances than requested, the response also contains the reasons.
        """
        refusals = []
        for error in response.get("Errors") or ():
            pool = error.get("LaunchTemplateAndOverrides", {}).get("Overrides", {})
            names = pool.get("InstanceType"), pool.get("AvailabilityZone") or pool.get("SubnetId")
            code, text = error.get("ErrorCode", "unknown"), error.get("ErrorMessage", "")
            refusals.append(Refusal(code=code, text=text, pool=" in ".join(filter(None, names))))
        return cls(
            launched=tuple(one for group in response.get("Instances") or () for one in group.get("InstanceIds", ())),
            refusals=tuple(dict.fromkeys(refusals)),
        )

    @property
    def hopeless(self) -> Refusal | None:
        """Return a reason that waiting does not resolve. Return None if instances were launched or waiting may help."""
        if self.launched or any(refusal.passes for refusal in self.refusals):
            return None
        return next(iter(self.refusals), None)

    def __str__(self) -> str:
        """Return the list of the pools that launched no instances, for messages."""
        texts = [str(refusal) for refusal in self.refusals]
        more = [f"and {len(texts) - 4} more pools"] if len(texts) > 4 else []
        return ", ".join([*texts[:4], *more]) or "no reason given"


def fleet_requests(
    options: Ec2Options,
    *,
    template: str,
    tags: Mapping[str, str],
    hosts: int,
    types: Sequence[str],
    subnets: Sequence[str],
    on_demand: int = 0,
    together: bool = False,
    max_total_price: float | None = None,
) -> list[dict[str, Any]]:
    """Return the arguments of ``CreateFleet`` requests. They are sent in this order until EC2 launches instances.

    The first request follows the user's options exactly. Each later request permits more combinations of instance types
    and purchasing options.

    Args:
        options: The EC2 options of the job.
        template: The name of the launch template.
        tags: The tags of the fleet and its instances.
        hosts: The number of hosts to launch.
        types: The instance types. The job's own type is the first one.
        subnets: The ids of the permitted subnets.
        on_demand: The number of on-demand hosts. The other hosts use spot capacity.
        together: Whether the job needs all hosts at its start. If True, each request launches either all its hosts or
            none, in one zone.
        max_total_price: The maximum total price of the spot hosts in US dollars per hour, or None for no limit.
    """
    gang = together and hosts > 1

    def group(count: int, one_type: bool, **more: Any) -> dict[str, Any]:
        """Return the options for the spot hosts or for the on-demand hosts of a request."""
        if gang:
            more |= {"SingleAvailabilityZone": True, "SingleInstanceType": one_type, "MinTargetCapacity": count}
        return more

    base = min(on_demand, hosts)
    passes = [(base, True)] if gang and len(types) > 1 else []  # number of on-demand hosts, and whether of one type
    passes.append((base, False))
    if options.on_demand_fallback and base < hosts:
        passes.append((hosts, False))
    spot_options = {"AllocationStrategy": "price-capacity-optimized", "InstanceInterruptionBehavior": "terminate"}
    if max_total_price is not None:
        spot_options["MaxTotalPrice"] = f"{max_total_price:.4f}"
    found = []
    for count, one_type in passes:
        # A gang is all hosts of a job that starts with all its hosts at once. In a single request, EC2 might choose
        # different zones for the spot hosts and the on-demand hosts of a gang.
        each_alone = gang and 0 < count < hosts
        for places in [[subnet] for subnet in subnets] if each_alone else [subnets]:
            pools = [{"InstanceType": type_, "SubnetId": subnet} for type_ in types for subnet in places]
            request: dict[str, Any] = {
                "Type": "instant",
                "LaunchTemplateConfigs": [
                    {
                        "LaunchTemplateSpecification": {"LaunchTemplateName": template, "Version": "1"},
                        "Overrides": pools[:_POOLS],
                    }
                ],
                "TargetCapacitySpecification": {
                    "TotalTargetCapacity": hosts,
                    "OnDemandTargetCapacity": count,
                    "SpotTargetCapacity": hosts - count,
                    "DefaultTargetCapacityType": "spot" if count < hosts else "on-demand",
                },
                "TagSpecifications": tagged(tags, "fleet", "instance"),
            }
            if count < hosts:
                request["SpotOptions"] = group(hosts - count, one_type, **spot_options)
            if count:
                request["OnDemandOptions"] = group(count, one_type, AllocationStrategy="lowest-price")
            found.append(request)
    return found


# --- the hosts' configuration ---


def tags_of(job: str, fleet: str, owner: str, more: Mapping[str, str]) -> dict[str, str]:
    """Return the tags of all resources that are created for a job."""
    return {**more, "Name": more.get("Name", f"fleetfit {job}"), JOB_TAG: job, FLEET_TAG: fleet, OWNER_TAG: owner}


def tagged(tags: Mapping[str, str], *kinds: str) -> list[dict[str, Any]]:
    """Return the ``TagSpecifications`` of a request that creates resources.

    Args:
        tags: The tags: name -> value.
        kinds: The kinds of resources that get the tags, by EC2's names (``instance``, ``volume``).
    """
    entries = [{"Key": key, "Value": value} for key, value in tags.items()]
    return [{"ResourceType": kind, "Tags": entries} for kind in kinds]


def user_data(host_key: str, host_key_public: str, *, first_lease: float) -> str:
    """Return the cloud-init configuration for a host's first start, which is applied before the host's sshd runs.

    The configuration sets the host's key, so that the first ssh connection can be verified. The configuration also
    starts the timer that shuts the host down when the host's lease has ended.

    Args:
        host_key: The private host key of all hosts of the fleet, in OpenSSH's format.
        host_key_public: The public key that belongs to ``host_key``.
        first_lease: The number of seconds until the host shuts down if no connection is made.
    """
    folder = LEASE.rpartition("/")[0]
    timer = (
        f"mkdir -p {folder}; chmod 1777 {folder}; "  # the login user is not root; the machine has no other users
        f"read -r now rest < /proc/uptime; until=$((${{now%%.*}} + {round(first_lease)})); "
        '(trap "" HUP; while sleep 1; do read -r now rest < /proc/uptime; '
        f"read -r until < {LEASE}; "  # before the first connection, there is no file, and the variable is not changed
        '[ "${now%%.*}" -lt "$until" ] || shutdown -h now || poweroff -f; '
        "done) </dev/null >/dev/null 2>&1 &"
    )
    settings = {
        "bootcmd": [["sh", "-c", timer]],
        "ssh_deletekeys": True,
        "ssh_keys": {"ed25519_private": host_key, "ed25519_public": host_key_public.strip()},
        "ssh_pwauth": False,
    }
    return f"#cloud-config\n{json.dumps(settings, indent=1)}\n"  # valid as YAML, too


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
    data: dict[str, Any] = {
        "ImageId": image,
        "KeyName": name,
        "SecurityGroupIds": [group],
        "UserData": base64.b64encode(user_data.encode()).decode(),
        "InstanceInitiatedShutdownBehavior": "terminate",
        # Only IMDSv2; a container on the host is one hop farther away.
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 2, "HttpEndpoint": "enabled"},
        "TagSpecifications": tagged(tags, "instance", "volume", "network-interface"),
    }
    if options.volume_gb is not None:
        disk = {"VolumeSize": options.volume_gb, "VolumeType": "gp3", "DeleteOnTermination": True, "Encrypted": True}
        data["BlockDeviceMappings"] = [{"DeviceName": root_device, "Ebs": disk}]
    if (profile := options.instance_profile) is not None:
        data["IamInstanceProfile"] = {"Arn" if profile.startswith("arn:") else "Name": profile}
    return data
