"""``fleetfit hosts`` and ``doctor --hosts``, with machines that ssh reaches."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import documents
import fleet as fleets
import pytest
import sshd
from run_documents import run_document

from estimators.backends.ssh import machines
from estimators.cli.main import main

pytestmark = pytest.mark.skipif(not fleets.possible(), reason="network namespaces need root and iproute2")


@pytest.fixture
def config(fleet: fleets.Fleet, monkeypatch: pytest.MonkeyPatch) -> str:
    """How ssh gets into the machines."""
    sshd.program()
    monkeypatch.delenv(machines.VARIABLE, raising=False)
    assert fleet.keys is not None
    return str(fleet.keys.client())


def run(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    status = main(["hosts", *words])
    told = capfd.readouterr()
    return status, told.out or told.err


@pytest.mark.leaves("files")
def test_a_check_tells_what_they_are_and_who_reaches_whom(
    config: str, fleet: fleets.Fleet, home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = [machine.address for machine in fleet.machines[:3]]
    status, text = run(capfd, "check", "--ssh-config", config, *hosts)
    assert "All 3 machines reach each other." in text, text
    assert all(f"ok  {host}  {host}" in text for host in hosts), text
    assert status == 0
    # One does not take what others send: a firewall, as far as they can tell.
    barred = fleet.machines[1]
    words = ["ip", "netns", "exec", barred.namespace, "ip", "route", "add", "blackhole"]
    subprocess.run([*words, f"{hosts[2]}/32"], check=True)
    try:
        status, text = run(capfd, "check", "--ssh-config", config, "--json", *hosts, "no-such-host.invalid")
    finally:
        words[words.index("add")] = "del"
        subprocess.run([*words, f"{hosts[2]}/32"], check=True)
    assert status != 0
    told = {one["host"]: one for one in json.loads(text)}
    assert list(told[hosts[1]]["unreachable"]) == [hosts[2]]
    assert "the name cannot be resolved" in told["no-such-host.invalid"]["warnings"][0]
    assert told[hosts[0]]["warnings"] == [] and abs(told[hosts[0]]["clock_s"]) < 1
    # The doctor looks at those of the environment, when asked.
    monkeypatch.setenv(machines.VARIABLE, "no-such-host.invalid")
    main(["doctor", "--hosts", "--json"])
    found = {one["name"]: one for one in json.loads(capfd.readouterr().out)["backends"]}
    assert found["ssh"]["text"] == "hosts of $FLEETFIT_HOSTS: no-such-host.invalid"
    assert found["no-such-host.invalid"]["state"] == "missing"
    assert "the name cannot be resolved" in found["no-such-host.invalid"]["text"]


def test_the_page_on_fleets_does_what_it_says(fleet: fleets.Fleet, tmp_path: Path, prepared_digits: Path) -> None:
    """Its machines have names, by a program ``ssh`` that brings its configuration along."""
    sshd.program()
    assert fleet.keys is not None
    names = [f"Host node-{number}\n  HostName {machine.address}" for number, machine in enumerate(fleet.machines, 1)]
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {shlex.quote(str(fleet.keys.client(*names)))} "$@"\n')
    program.chmod(0o755)
    (document,) = documents.that_need("ssh")
    path = f"{program.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    (tmp_path / "document").mkdir()
    run_document(document, tmp_path / "document", "ssh", digits=prepared_digits, environment={"PATH": path})
