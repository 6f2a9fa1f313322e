"""What a job may ask of EC2: ``RunOptions(backend_options=…)``."""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Mapping
from typing import Any

from container.contract.names import shown
from container.contract.rules import boolean, money, one_of, option, read, refuse, seconds, text, texts, whole
from estimators.job.errors import ConfigurationError
from estimators.job.request import TrainingJobSpec

#: What instance types begin with here.
PREFIX = "ec2."
#: Where a public parameter says which image is the newest: Ubuntu without and with a GPU's driver. Both have Python
#: 3.12 and cloud-init; the login is ``ubuntu``.
PLAIN_IMAGE = "/aws/service/canonical/ubuntu/server/24.04/stable/current/{architecture}/hvm/ebs-gp3/ami-id"
GPU_IMAGE = "/aws/service/deeplearning/ami/{architecture}/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"

_TYPE = re.compile(r"[a-z][a-z0-9-]*\.[a-z0-9-]+")
_ZONE = r"[a-z]{2}(-[a-z]+)+-\d[a-z]|[a-z0-9-]+-az\d+|[a-z0-9-]{4,40}"
#: Where hosts find the instance metadata service.
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ec2Options:
    """``RunOptions(backend_options={…})`` of jobs on EC2. Money is in US dollars, time in seconds.

    Attributes:
        region: The region; None: as boto3 finds it.
        profile: A profile of AWS's configuration files.
        types: Further instance types that will do, beside the job's own: ``["g5.xlarge", "g4dn.2xlarge"]``.
        zones: The availability zones that may be used; empty: all of the region.
        subnets: The subnets that may be used, of one VPC; empty: the default VPC's.
        ami: An image (``ami-…``) or the SSM parameter that names it; None: Ubuntu 24.04, for GPUs with their driver.
        user: Who logs in there.
        ssh_config: A configuration of ssh, for a jump host say; None: none, not ``~/.ssh/config`` either.
        reach: Which address of a host the caller connects to, ``public`` or ``private``.
        ssh_from: The networks that may connect to the hosts' ssh port; empty: only this machine's address, as
            ``checkip.amazonaws.com`` sees it.
        on_demand_base: With spot capacity, how many hosts are on demand all the same.
        on_demand_fallback: Whether hosts are taken on demand where there is no spot capacity.
        max_price_per_hour: What all hosts may cost together in an hour; where they would cost more, the job is stopped.
        budget: What the job may cost in all; when that is spent, it is stopped as by ``max_run``.
        on_demand_price: A host's price on demand, for types whose price is not known.
        volume_gb: The size of the hosts' disk; None: as the image says.
        instance_profile: The instance profile whose role the hosts have; None: no role.
        tags: More tags for everything that is made.
        python: The hosts' interpreter; see ``instance_type="ssh"``.
        requirements: What the hosts' environment holds; see ``instance_type="ssh"``.
        caller_address: Where the hosts reach this machine, if not where their ssh connection comes from.
        capacity_timeout: How long capacity is waited for; with ``max_wait``, that counts instead.
        boot_timeout: How long a host may take from its launch until it can be logged in to.
        lease: How long a host runs on when nobody is connected to it any more.
        first_lease: How long a host waits for the first connection after its boot.
        silence: After how long without a sign of life a host is lost.
        poll: How often EC2 is asked about the hosts while some are awaited; five times that otherwise.
        imds: Where hosts find the instance metadata service.
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
        """Read ``backend_options``.

        Raises:
            ConfigurationError: an unknown option, or a value that makes no sense.
        """
        made: Ec2Options = read(cls, options)
        return made


def instance_types(spec: TrainingJobSpec, options: Ec2Options) -> tuple[str, ...]:
    """Return EC2's names of the instance types that the job may run on, its own first.

    Raises:
        ConfigurationError: the job's own is none of EC2's form.
    """
    own = (spec.instance_type or "").removeprefix(PREFIX)
    if _TYPE.fullmatch(own) is None:
        raise ConfigurationError(
            f"{shown(spec.instance_type)} is not an EC2 type. Write a type such as 'ec2.g5.xlarge'."
        )
    return tuple(dict.fromkeys((own, *options.types)))
