"""Define the options of a job on EC2: ``RunOptions(backend_options=…)``."""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Mapping
from typing import Any

from container.contract.frozen import dataclass
from container.contract.names import shown
from container.contract.rules import boolean, money, one_of, option, read, refuse, seconds, text, texts, whole
from estimators.job.errors import ConfigurationError
from estimators.job.request import JobOptions, TrainingJobSpec

#: Prefix of EC2's instance types in ``instance_type``.
PREFIX = "ec2."
#: Public SSM parameters with the newest image: Ubuntu without and with GPU drivers. Both images have Python 3.12 and
#: cloud-init; the login name is ``ubuntu``.
PLAIN_IMAGE = "/aws/service/canonical/ubuntu/server/24.04/stable/current/{architecture}/hvm/ebs-gp3/ami-id"
GPU_IMAGE = "/aws/service/deeplearning/ami/{architecture}/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"

_TYPE = re.compile(r"[a-z][a-z0-9-]*\.[a-z0-9-]+")
_ZONE = r"[a-z]{2}(-[a-z]+)+-\d[a-z]|[a-z0-9-]+-az\d+|[a-z0-9-]{4,40}"
#: The address of the instance metadata service on hosts.
IMDS = "http://169.254.169.254"


def _type(where: str, value: Any) -> str:
    name: str = text(_TYPE.pattern, "not an instance type such as 'g5.xlarge'")(where, value.removeprefix(PREFIX))
    return name


def _network(where: str, value: Any) -> str:
    try:
        return str(ipaddress.ip_network(value))
    except ValueError as error:
        raise ConfigurationError(f"{where}: {error}. Write a network such as '203.0.113.7/32'.") from None


def _tags(where: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(word, str) for tag in value.items() for word in tag):
        raise refuse(where, "a dict of strings", value)
    for name in value:
        if name.lower().startswith(("aws:", "fleetfit:")):
            raise ConfigurationError(f"{where}: {shown(name)} is reserved. Choose a name without aws: or fleetfit:.")
    return dict(value)


@dataclass(frozen=True, kw_only=True)
class Ec2Options:
    """The ``RunOptions(backend_options={…})`` of jobs on EC2. Amounts of money are in US dollars, and times are in
    seconds.

    Attributes:
        region: The region. The default is boto3's default region.
        profile: The name of a profile in AWS's configuration files.
        types: The instance types that are permitted in addition to the job's own type: ``["g5.xlarge",
            "g4dn.2xlarge"]``.
        zones: The permitted availability zones. If empty, all zones of the region are permitted.
        subnets: The permitted subnets, which must belong to one VPC. If empty, the subnets of the default VPC are
            permitted.
        ami: The id of an image (``ami-…``), or the SSM parameter that contains the id. If None, the image is Ubuntu
            24.04, with drivers for GPU types.
        user: The login name on the hosts.
        ssh_config: An ssh configuration file, for example for a jump host. If None, no configuration file is used, not
            even ``~/.ssh/config``.
        reach: The kind of the hosts' addresses that the caller connects to: ``public`` or ``private``.
        ssh_from: The networks that may connect to the hosts' ssh port. If empty, only this machine may connect. The
            address of this machine is then requested from ``checkip.amazonaws.com``.
        on_demand_base: The number of on-demand hosts in a job that uses spot capacity for the other hosts.
        on_demand_fallback: Whether to use on-demand hosts if EC2 has no spot capacity.
        max_price_per_hour: The maximum price of all hosts together per hour. The job is stopped if the hosts cost more.
        budget: The maximum cost of the whole job. When the cost reaches this maximum, the job is stopped in the same
            way as after ``max_run``.
        on_demand_price: The on-demand price of a host per hour. If None, the price is read from AWS's price list.
        volume_gb: The size of the hosts' disk in GB. The default is the size in the image.
        instance_profile: The instance profile with the hosts' role. If None, the hosts have no role.
        tags: Additional tags for all created resources.
        python: The Python interpreter of the hosts, as for ``instance_type="ssh"``.
        requirements: The packages of the hosts' environment, as for ``instance_type="ssh"``.
        caller_address: The address at which the hosts reach this machine. The default is the source address of the ssh
            connection.
        capacity_timeout: The longest wait for capacity. A spot job with ``max_wait`` uses ``max_wait`` instead.
        boot_timeout: The longest time until a running host accepts logins.
        lease: The time after which a host shuts down when the supervisor's connection has ended.
        first_lease: The time after its boot at which a host shuts down if no connection was made.
        silence: The time without a message from a host after which the host counts as lost.
        poll: The time between two polls of EC2 while hosts are starting. At other times, the time is five times as
            long.
        imds: The address of the instance metadata service on the hosts.
    """

    region: str | None = option(text())
    profile: str | None = option(text())
    types: tuple[str, ...] = option(texts(_type), ())
    zones: tuple[str, ...] = option(texts(text(_ZONE, "not an availability zone such as 'eu-west-1a'")), ())
    subnets: tuple[str, ...] = option(
        texts(text(r"subnet-[0-9a-f]+", "not a subnet such as 'subnet-0123456789abcdef0'")), ()
    )
    ami: str | None = option(
        text(r"ami-[0-9a-f]+|/[\w./-]+", "neither an image ('ami-…') nor an SSM parameter ('/aws/service/…')")
    )
    user: str = option(text(r"[a-z_][a-z0-9_-]{0,31}", "not a login name"), "ubuntu")
    ssh_config: str | None = option(text())
    reach: str = option(one_of("public", "private"), "public")
    ssh_from: tuple[str, ...] = option(texts(_network), ())
    on_demand_base: int = option(whole(0, 10_000), 0)
    on_demand_fallback: bool = option(boolean, False)
    max_price_per_hour: float | None = option(money)
    budget: float | None = option(money)
    on_demand_price: float | None = option(money)
    volume_gb: int | None = option(whole(1, 65_536))
    instance_profile: str | None = option(text())
    tags: Mapping[str, str] = dataclasses.field(default_factory=dict, metadata={"rule": _tags})
    python: str | None = option(text())
    requirements: tuple[str, ...] | None = option(texts())
    caller_address: str | None = option(text())
    capacity_timeout: float = option(seconds(0), 300.0)
    boot_timeout: float = option(seconds(10), 300.0)
    lease: float = option(seconds(10), 30.0)
    first_lease: float = option(seconds(20), 120.0)
    silence: float = option(seconds(1), 15.0)
    poll: float = option(seconds(0.2), 2.0)
    imds: str = option(text(r"http://[\w.:\[\]-]+", "not an address such as 'http://169.254.169.254'"), IMDS)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Ec2Options:
        """Read the options from ``backend_options``.

        Raises:
            ConfigurationError: an option is unknown, or a value is invalid.
        """
        made: Ec2Options = read(cls, options)
        return made


def instance_types(spec: TrainingJobSpec, options: Ec2Options) -> tuple[str, ...]:
    """Return EC2's names of the permitted instance types. The job's own type is the first one.

    Raises:
        ConfigurationError: the job's own type is not an EC2 type.
    """
    own = (spec.instance_type or "").removeprefix(PREFIX)
    if _TYPE.fullmatch(own) is None:
        raise ConfigurationError(
            f"{shown(spec.instance_type)} is not an EC2 type. Write a type such as 'ec2.g5.xlarge'."
        )
    return tuple(dict.fromkeys((own, *options.types)))


def ssh_part(options: JobOptions) -> JobOptions:
    """Return the run options for the ssh provider: with the backend options that both providers have, and no hosts."""
    given = dataclasses.asdict(Ec2Options.of(options.backend_options))
    part = {name: given[name] for name in ("python", "requirements", "caller_address", "silence")}
    return dataclasses.replace(options, backend_options={**part, "hosts": []})
