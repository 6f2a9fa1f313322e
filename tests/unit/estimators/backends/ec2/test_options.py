"""What a job may ask of EC2."""

from __future__ import annotations

from typing import Any

import pytest

from estimators import ConfigurationError
from estimators.backends.ec2.options import Ec2Options, ssh_part
from estimators.backends.ssh.machines import SshOptions
from estimators.job.request import JobOptions


def test_options_are_read() -> None:
    types = ["ec2.g5.xlarge", "g4dn.2xlarge", "g5.xlarge"]
    given = {"types": types, "zones": "eu-west-1a", "ssh_from": ["203.0.113.7"], "budget": 12, "ami": None}
    options = Ec2Options.of(given)
    assert options.types == ("g5.xlarge", "g4dn.2xlarge") and options.zones == ("eu-west-1a",)
    assert options.ssh_from == ("203.0.113.7/32",) and options.budget == 12.0
    assert options.ami is None and options.user == "ubuntu"


def test_the_options_of_ssh_are_handed_on() -> None:
    options = JobOptions(backend="ec2", backend_options={"requirements": "numpy", "silence": 5, "budget": 12})
    handed_on = SshOptions.of(ssh_part(options).backend_options)
    assert handed_on == SshOptions(requirements=("numpy",), silence=5, hosts=())


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("typo", 1, "typo"),
        ("types", ["g5"], "g5.xlarge"),
        ("types", 5, "list of strings"),
        ("ami", "ubuntu", "ami-"),
        ("ssh_from", ["10.0.0.1/8"], "network"),
        ("budget", 0, "above 0"),
        ("budget", float("inf"), "above 0"),
        ("budget", True, "an amount in US dollars"),
        ("budget", 1e9, "above 0 and below 1,000,000,000"),
        ("budget", "x", "must be an amount in US dollars above 0"),
        ("on_demand_base", 1.5, "whole number"),
        ("reach", "vpn", "public"),
        ("user", "-l", "login"),
        ("imds", "https://x/y", "169.254"),
        ("tags", {"aws:x": "1"}, "aws:"),
        ("tags", {"a": 1}, "dict of strings"),
        ("lease", 1, "from 10"),
        ("lease", float("nan"), "from 10"),
        ("subnets", ["10.0.0.0"], "subnet-"),
        ("on_demand_fallback", "yes", "True or False"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(name: str, value: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=name) as refused:
        Ec2Options.of({name: value})
    assert text in str(refused.value)
