"""Shaped links between network namespaces: what is planned, what is left behind, and that links are slower."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from benchmarks import drawing, harness, links
from estimators.backends.docker.links import ShapedLink

PLAN = links.Plan(name="bench-links-7-70-1", hosts=3)
HOSTS = [f"bench-links-7-70-1-host{number}" for number in (1, 2, 3)]


# --- planning ---


def test_both_ends_of_each_link_are_made_in_their_namespaces() -> None:
    commands = PLAN.making()
    assert [command[3] for command in commands if command[1:3] == ["netns", "add"]] == PLAN.names()
    assert PLAN.names() == ["bench-links-7-70-1-switch", *HOSTS]
    assert all(command[1] == "-n" for command in commands if command[1] != "netns"), "outside of the namespaces"
    pairs = [command for command in commands if "veth" in command]
    assert [command[2] for command in pairs] == [PLAN.switch] * 3
    assert [command[-1] for command in pairs] == HOSTS
    assert len({command[command.index("name") + 1] for command in pairs}) == 3
    addresses = [command[5] for command in commands if "address" in command]
    assert addresses == [f"{PLAN.address(index)}/24" for index in range(3)] and len(set(addresses)) == 3


def test_each_direction_of_each_link_is_shaped() -> None:
    commands = PLAN.shaping(ShapedLink(rate=100_000_000))
    assert [command[:7] for command in commands[:2]] == [
        ["tc", "-n", HOSTS[0], "qdisc", "replace", "dev", "eth0"],
        ["tc", "-n", PLAN.switch, "qdisc", "replace", "dev", "port1"],
    ]
    assert len(commands) == 6
    assert all(command[7:11] == ["root", "tbf", "rate", "100000000bit"] for command in commands)
    assert PLAN.shaping(None) == []


def test_no_two_plans_share_a_name() -> None:
    first, second = links.plan(2), links.plan(2)
    assert not set(first.names()) & set(second.names())


def test_only_namespaces_of_runs_that_are_no_more_are_leftovers() -> None:
    mine = links.plan(2)
    names = ["bench-links-7-70-1-switch", "bench-links-8-80-1-host1", "bench-links-9-90-1-host2", "bench-links-mine",
             "x-bench-links-9-90-1-host2", "podman", *mine.names()]  # fmt: skip
    # 7 runs, 8's number is another process's now, 9 is gone.
    starts = {7: 70, 8: 81, os.getpid(): links._start_of(os.getpid())}
    assert links.leftovers(names, starts.get) == ["bench-links-8-80-1-host1", "bench-links-9-90-1-host2"]


def test_the_workers_find_each_other_at_the_namespaces_addresses() -> None:
    found = links.commands(PLAN, 0.5, Path("/r.json"))
    assert [command[:4] for _, command, _ in found] == [["ip", "netns", "exec", host] for host in HOSTS]
    configs = [json.loads(variables["TF_CONFIG"]) for _, _, variables in found]
    assert [config["task"]["index"] for config in configs] == [0, 1, 2]
    assert configs[0]["cluster"] == {"worker": [f"{PLAN.address(index)}:7000" for index in range(3)]}


# --- what numbers say ---


def numbers(hosts: int, rate: float, times_bound: float) -> dict[str, float]:
    found = {str(size): times_bound * links.bound(size, rate, hosts) for size in links.SIZES.values()}
    return {"carried": rate, **found}


@pytest.fixture
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Intervals are tested elsewhere."""
    monkeypatch.setattr(harness, "_RESAMPLES", 50)


VALUES = {
    way: [numbers(hosts, link.rate / 8 if link else 1e9, 1.25)] * 2 for way, (hosts, link) in links.ways_of().items()
}


@pytest.mark.usefixtures("few_resamples")
def test_times_stand_beside_a_rings_bound() -> None:
    assert links.bound(1000, 500.0, 2) == pytest.approx(2.0)
    assert links.bound(1000, 500.0, 4) == pytest.approx(3.0)
    rows = links.rows_of(VALUES)
    assert len(rows) == 3 * 3 * 2
    slow = next(row for row in rows if row.what == "2 hosts, 100 Mbit/s; big, 16 MB")
    assert slow.estimate.value == pytest.approx(1.25 * (1 << 24) * 8 / 1e8 * 1e3)
    assert slow.beside["bus, MB/s"] == pytest.approx(10.0)
    unshaped = next(row for row in rows if row.what == "4 hosts, unshaped; small, 1 MB")
    assert unshaped.beside["bound, ms"] == pytest.approx(1.5 * (1 << 20) / 1e9 * 1e3)


@pytest.mark.usefixtures("few_resamples")
def test_the_table_has_each_count_of_hosts_and_link() -> None:
    lines = links.table(VALUES).splitlines()
    assert len([line for line in lines if line.startswith("|")]) == 2 + 9
    row = next(line for line in lines if line.startswith("| 2 hosts, 100 Mbit/s |"))
    assert row.endswith("| 1,677.7 (1,677.7 to 1,677.7) | 10.0 | 0.80 |")


@pytest.mark.usefixtures("few_resamples")
def test_every_row_is_in_the_plot_with_its_bound() -> None:
    rows = links.rows_of(VALUES)
    plot = drawing._links([row.to_dict() for row in rows])
    assert [axes.get_title(loc="left") for axes in plot.figure.axes] == list(links.SIZES)
    drawn = sum(len(curve[0].get_xdata()) for axes in plot.figure.axes for curve in axes.containers)
    assert drawn == len(rows)
    (legend,) = plot.figure.legends
    said = [text.get_text() for text in legend.get_texts()]
    assert set(said) == {*links.LINKS, *(f"{name}: bound" for name in links.LINKS)}


# --- where it is not available ---


def test_why_it_cannot_be_had_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    assert links.refusal() == "ip and tc not found; Debian's package iproute2 has them"
    with pytest.raises(links.Unavailable, match="iproute2"), links.made(PLAN):
        pass
    monkeypatch.setattr(shutil, "which", lambda name, path=None: f"/sbin/{name}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert links.refusal() == "only root may make network namespaces"


@pytest.mark.parametrize("failing", range(len(PLAN.making()) + 1))
def test_what_was_made_before_a_failure_is_removed(monkeypatch: pytest.MonkeyPatch, failing: int) -> None:
    """At each command, and in the body."""
    monkeypatch.setattr(links, "refusal", lambda: None)
    there, count = {"podman"}, 0

    def run(command: list[str]) -> str:
        nonlocal count
        match command[:3]:
            case ["ip", "netns", "list"]:
                return "".join(f"{name} (id: 1)\n" for name in there)
            case ["ip", "netns", "pids"]:
                return ""
            case ["ip", "netns", "delete"]:
                there.remove(command[3])
                return ""
        if command[1:3] == ["netns", "add"]:
            there.add(command[3])
        count += 1
        if count == failing + 1:
            raise links.Unavailable("Operation not permitted")
        return ""

    monkeypatch.setattr(links, "_run", run)
    with pytest.raises(links.Unavailable, match="not permitted"), links.made(PLAN):
        raise links.Unavailable("not permitted")
    assert there == {"podman"}
