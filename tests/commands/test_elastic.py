"""``fleetfit horovodrun``: horovodrun's options become those of a job."""

from __future__ import annotations

import os

import pytest

from estimators.cli import parser
from estimators.commands.elastic import horovodrun_arguments

FLAGS = "-np 8 --min-np 4 --max-np 12 --slots 4 --host-discovery-script discover_hosts.sh"


@pytest.mark.parametrize(("command", "arguments"), [("train.py", []), ("a/train.py --epochs 4", ["--epochs", "4"])])
def test_horovodruns_flags_are_those_of_an_elastic_job(command: str, arguments: list[str]) -> None:
    given = horovodrun_arguments(parser().parse_args(["horovodrun", *FLAGS.split(), "python", *command.split()]))
    assert (given.hosts, given.processes, given.strategy) == (2, 4, "elastic_horovod")
    script = os.path.abspath("discover_hosts.sh")  # the supervisor runs it, elsewhere
    assert {"min_workers=4", "max_workers=12", "slots=4", "max_hosts=3", f"discovery={script}"} <= set(given.option)
    assert given.script_arguments == arguments
