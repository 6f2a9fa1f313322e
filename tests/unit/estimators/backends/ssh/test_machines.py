"""Which machines there are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from estimators.backends.ssh import checking, machines
from estimators.backends.ssh.machines import SshOptions, parse_file, parse_list
from estimators.cli.main import main
from estimators.job.errors import ConfigurationError


def shape(found: tuple[machines.SshMachine, ...]) -> list[tuple[str | None, str, int | None, str | None]]:
    return [(one.destination.user, one.destination.host, one.slots, one.address) for one in found]


def test_a_list_has_hosts_logins_slots_and_addresses() -> None:
    full = {"host": "h3", "user": "bob", "port": 2222, "slots": 3, "address": "10.0.0.3"}
    found = parse_list(["h1", "ann@h2:4", "[fe80::1]:2", "10.0.0.1", full], "x")
    assert shape(found) == [
        (None, "h1", None, None), ("ann", "h2", 4, None), (None, "fe80::1", 2, None), (None, "10.0.0.1", None, None),
        ("bob", "h3", 3, "10.0.0.3"),
    ]  # fmt: skip
    assert [one.name for one in found] == ["h1", "h2", "fe80::1", "10.0.0.1", "h3:2222"]
    assert shape(parse_list("h1:2, h2", "x")) == [(None, "h1", 2, None), (None, "h2", None, None)]


def test_a_file_is_openmpis_horovods_or_a_list() -> None:
    text = "# the lab\nh1 slots=4\n\nann@h2 slots=2 max_slots=8  # the small one\nh3:6\n10.0.0.9\nh4 address=10.1.0.4\n"
    assert shape(parse_file(text, "hosts")) == [
        (None, "h1", 4, None), ("ann", "h2", 2, None), (None, "h3", 6, None), (None, "10.0.0.9", None, None),
        (None, "h4", None, "10.1.0.4"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("h1 slots=x", "line 1: 'slots=x'"),
        ("h1\nh2 cpu=4", "line 2: 'cpu=4' is neither slots=N"),
        ("h1 slots=0", "must be at least 1"),
        ("h1\nh1", "twice"),
        ("-oProxyCommand=x", "is not the name or address of a host"),
        ("h1:0", "no slots"),
        ("a b c", "is neither slots=N"),
    ],
)
def test_a_wrong_line_is_named(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        parse_file(text, "hosts")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"host": []}, "unknown backend option 'host'. Did you mean 'hosts'"),
        ({"hosts": {"a": 1}}, "must be a list of hosts"),
        ({"hosts": [1]}, "1 is not a host"),
        ({"hosts": [{"name": "a"}]}, "unknown key of a host"),
        ({"hosts": [{"host": "a", "slots": True}]}, "'slots' must be a whole number"),
        ({"hosts": [{"host": "a", "port": 70000}]}, "'port' must be a whole number from 1 to 65,535"),
        ({"hosts": ["a"], "host_file": "f"}, "either 'hosts' or 'host_file'"),
        ({"python": "/p", "requirements": []}, "not both"),
        ({"silence": 0}, "from 1 to 3,600"),
        ({"python": 3}, "must be a string"),
        ({"fleet": "../x"}, "must be a name"),
        ({"requirements": "numpy"}, "must be a list"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        SshOptions.of(options)


def test_the_first_place_that_names_hosts_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path))
    monkeypatch.delenv(machines.VARIABLE, raising=False)
    assert SshOptions.of({}).machines() == ()
    machines.save("default", parse_list(["ann@added:2", {"host": "b", "address": "10.0.0.1"}], "x"))
    assert shape(SshOptions.of({}).machines()) == [("ann", "added", 2, None), (None, "b", None, "10.0.0.1")]
    assert SshOptions.of({"fleet": "other"}).machines() == ()
    monkeypatch.setenv(machines.VARIABLE, "env1:2,env2")
    assert [one.name for one in SshOptions.of({}).machines()] == ["env1", "env2"]
    (tmp_path / "file").write_text("filed slots=2\n")
    monkeypatch.setenv(machines.VARIABLE, str(tmp_path / "file"))
    assert [one.name for one in SshOptions.of({}).machines()] == ["filed"]
    assert [one.name for one in SshOptions.of({"hosts": ["given"]}).machines()] == ["given"]
    with pytest.raises(ConfigurationError, match="cannot be read"):
        SshOptions.of({"host_file": str(tmp_path / "none")}).machines()


def hosts(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Run ``fleetfit hosts``; its exit code and what it says."""
    status = main(["hosts", *words])
    told = capsys.readouterr()
    return status, told.out or told.err


def test_hosts_are_added_listed_and_removed(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(machines.VARIABLE, raising=False)
    assert hosts(capsys, "add", "node-1", "ann@node-2:2", "--slots", "4")[0] == 0
    assert hosts(capsys, "add", "node-3")[1].startswith("fleetfit: the fleet has 3 hosts: node-1, node-2, node-3")
    assert hosts(capsys, "list")[1] == "node-1  slots=4\nann@node-2  slots=2\nnode-3\n"
    status, text = hosts(capsys, "remove", "node-22")
    assert status != 0 and "Did you mean 'node-2'" in text
    assert hosts(capsys, "remove", "node-2", "node-1")[0] == 0
    plain = {"host": "node-3", "user": None, "slots": None, "address": None}
    assert json.loads(hosts(capsys, "list", "--json")[1]) == [plain]
    assert hosts(capsys, "add", "-oProxyCommand=x")[0] != 0


def test_what_is_in_the_way_is_told_with_its_remedy() -> None:
    (machine,) = parse_list(["a"], "x")
    facts = {
        "hostname": "a", "knows_itself": False, "processor": "x86_64", "pythons": {"3.9.2": "/usr/bin/python3"},
        "cpus": 1, "gpus": 0, "disk": 1, "temporary": 1, "port": 1, "problem": "",
    }  # fmt: skip
    report = checking.MachineReport(machine=machine, facts=facts, clock=-3600.2, unreachable={"b": "timed out"})
    words = [
        "3.10 or newer is missing (installed: 3.9.2)",
        "3600.2 s behind",
        "for env",
        "for jobs",
        "own name",
        "reach b",
    ]
    assert [word for word, text in zip(words, report.warnings(), strict=True) if word not in text] == []
