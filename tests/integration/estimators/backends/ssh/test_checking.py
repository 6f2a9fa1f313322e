"""Checks of machines that real sshd reaches."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from sshd import Keys, Server

from estimators.backends.openssh.command import SshSettings
from estimators.backends.ssh import checking
from estimators.backends.ssh.machines import parse_list


@pytest.mark.leaves("files")
@pytest.mark.parametrize(
    "printing, printed",
    [
        ('echo "Python of the lab, ask Ann"', "'Python of the lab, ask Ann'"),
        ("""echo '{"time": 1}'""", """'{"time": 1}'"""),
        ("head -c 20000000 /dev/zero", "a very long line"),
    ],
    ids=["text", "object", "long line"],
)
def test_a_host_whose_python_prints_something_is_reported_and_the_others_are_checked(
    server: Server, keys: Keys, settings: SshSettings, tmp_path: Path, printing: str, printed: str
) -> None:
    program = tmp_path / "bin" / "python3"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n{printing}\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    talking = Server(keys, "127.0.0.3", more=f'SetEnv HOME="{tmp_path}" PATH="{path}"')
    hosts = [{"host": one.address, "port": one.port} for one in (server, talking)]
    try:
        good, bad = checking.check(settings, parse_list(hosts, "hosts"))
    finally:
        talking.close()
    assert good.problem == "" and good.facts["cpus"] >= 1
    assert bad.facts == {} and bad.warnings() == [bad.problem]
    assert f"python3 there printed {printed} instead of" in bad.problem
