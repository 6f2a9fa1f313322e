"""Hosts of allocations: who shares one, what is asked of Slurm for them, and what follows from what Slurm says."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from values import ProviderQueue, ValueHost, VirtualLoop, provided, spec_of

from container.contract.strategies import ElasticHorovod
from estimators.backends.hosts.provider import HostUnavailable
from estimators.backends.slurm import allocations
from estimators.backends.slurm import provider as slurm

CANCELLED = b"*** STEP 7.0 ON n1 CANCELLED AT 2026-11-27T03:00:00 ***\n"
PREEMPTED = b"*** STEP 7.0 ON n1 CANCELLED AT 2026-11-27T03:00:00 DUE TO PREEMPTION ***\n"


class Program:
    """A program that was started, as the test plays it; see :class:`estimators.backends.hosts.child.ChildProcess`."""

    input = output = -1

    def __init__(self, argv: Sequence[str]) -> None:
        self.argv = list(argv)
        self.errors = bytearray()
        self._sent = b""
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        self._ended = asyncio.Event()

    def send(self, data: bytes) -> None:
        self._sent += data

    def read(self) -> list[dict[str, Any]]:
        """What it was told since the last time."""
        sent, self._sent = self._sent, b""
        return [json.loads(line) for line in sent.splitlines()]

    def say(self, data: bytes) -> None:
        """Print a line; of srun, to its standard error."""
        self.errors += data
        self._lines.put_nowait(data)

    def end(self) -> None:
        """End it."""
        self._ended.set()
        self._lines.put_nowait(b"")

    async def line(self) -> bytes:
        if not (line := await self._lines.get()):
            raise EOFError
        return line

    async def wait(self) -> int:
        await self._ended.wait()
        return 0

    def close(self) -> None: ...


class Slurm:
    """A job's provider on a Slurm that does what the test says.

    Attributes:
        keepers: The processes that were started to talk to Slurm.
        sruns: Those that were started for agents.
        asked: What Slurm was asked for: ``[operation, …]``.
        agents: What the agents' hosts were made with, by host.
    """

    def __init__(self, *, elastic: bool = False, **options: Any) -> None:
        self.loop = VirtualLoop()
        self.events = ProviderQueue()
        self.keepers: list[Program] = []
        self.sruns: list[Program] = []
        self.agents: dict[str, dict[str, Any]] = {}
        self.python_version = ".".join(map(str, sys.version_info[:3]))
        self._questions: list[dict[str, Any]] = []
        spec = spec_of(ElasticHorovod(min_hosts=1, max_hosts=4) if elastic else None, instance_type="slurm")
        self.provider = slurm.SlurmProvider(provided(self.loop, spec, self.events, **options))

    def start_program(self, loop: Any, argv: Sequence[str], **more: Any) -> Program:
        program = Program(argv)
        (self.sruns if "srun" in argv else self.keepers).append(program)
        return program

    async def connect(self, loop: Any, name: str, read: int, write: int, **more: Any) -> ValueHost:
        """See :meth:`estimators.backends.hosts.remote.RemoteHost.connect`."""
        host = ValueHost(name)
        host.facts = dataclasses.replace(host.facts, python_version=self.python_version)
        self.agents[name] = more
        return host

    def acquire(self, *names: str) -> list[asyncio.Task[Any]]:
        """Have hosts acquired in one turn."""
        tasks = [self.loop.create_task(self.provider.acquire(name)) for name in names]
        self.loop.advance()
        return tasks

    def asked(self) -> list[list[str]]:
        """What was asked for since the last time: operation, and its words that matter here."""
        new = self.keepers[-1].read() if self.keepers else []
        self._questions += new
        return [
            [question["op"], *[word for word in question.get("argv", [question.get("job")]) if _matters(word)]]
            for question in new
        ]

    def answer(self, operation: str, event: str, **values: Any) -> None:
        """Answer the first question of a kind that has no answer yet; a job that is pending goes on being watched."""
        question = next(question for question in self._questions if question["op"] == operation)
        if event != "pending":
            self._questions.remove(question)
        self.keepers[-1].say(json.dumps({"id": question["id"], "event": event, **values}).encode() + b"\n")
        self.loop.advance()

    def submitted(self, job: str) -> None:
        """Have what was asked for submitted, and watched."""
        self.asked()
        self.answer("submit", "submitted", job=job)
        self.asked()

    def allocate(self, job: str, *nodes: str) -> None:
        """Have what was submitted run at once."""
        self.submitted(job)
        self.runs(*nodes)

    def runs(self, *nodes: str, operation: str = "watch") -> None:
        self.answer(operation, "running", nodes=[{"name": node, "address": "127.0.0.1"} for node in nodes])


def _matters(word: Any) -> bool:
    return word is not None and (not word.startswith("-") or word.startswith(("--nodes=", "--exclude=")))


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Slurm]]:
    """Makes providers; whatever has failed unnoticed fails the test."""
    made: list[Slurm] = []

    def one(**options: Any) -> Slurm:
        made.append(Slurm(**options))
        monkeypatch.setattr(allocations, "ChildProcess", made[-1].start_program)
        monkeypatch.setattr(slurm, "ChildProcess", made[-1].start_program)
        monkeypatch.setattr(slurm.RemoteHost, "connect", made[-1].connect)
        return made[-1]

    yield one
    for each in made:
        each.provider.close()
        for program in (*each.keepers, *each.sruns):
            program.end()
        each.loop.advance()
        each.loop.close()


@pytest.fixture
def cluster(make: Callable[..., Slurm]) -> Slurm:
    return make()


def outcome(task: asyncio.Task[Any]) -> Any:
    """The host of an acquisition, or why there is none."""
    if not task.done():
        return None
    error = task.exception()
    assert error is None or isinstance(error, HostUnavailable)
    return str(error) if error is not None else task.result().name


def test_hosts_that_are_asked_for_at_once_come_in_one_allocation(cluster: Slurm) -> None:
    tasks = cluster.acquire("algo-1", "algo-2")
    assert cluster.asked() == [["submit", "sbatch", "--nodes=2"]]
    cluster.answer("submit", "submitted", job="7")
    assert cluster.asked() == [["watch", "7"]]
    cluster.answer("watch", "pending", reason="Resources", position=2)
    assert cluster.events.waits == [
        "Slurm job 7 is pending, at place 2 of its partition's queue: it waits for nodes to become free (Resources)."
    ]
    assert [outcome(task) for task in tasks] == [None, None]
    cluster.runs("n1", "n2")
    assert [outcome(task) for task in tasks] == ["algo-1", "algo-2"]
    # The script runs on the first node, and waits for the agent there.
    assert [(one.argv[2], one.argv[-1]) for one in cluster.sruns] == [("--nodelist=n1", "7"), ("--nodelist=n2", "")]
    cluster.provider.release(tasks[1].result())
    assert cluster.asked() == []
    cluster.provider.release(tasks[0].result())
    assert cluster.asked() == [["cancel", "7"]]


def test_each_host_of_an_elastic_job_has_an_allocation_of_its_own_on_another_node(make: Callable[..., Slurm]) -> None:
    cluster = make(elastic=True)
    first, second = cluster.acquire("algo-1", "algo-2")
    assert cluster.asked() == [["submit", "sbatch", "--nodes=1"]] * 2
    cluster.answer("submit", "submitted", job="7")
    cluster.answer("submit", "submitted", job="8")
    cluster.asked()
    cluster.runs("n1")
    cluster.runs("n1")  # another part of it
    assert (outcome(first), outcome(second)) == ("algo-1", None)
    assert cluster.asked() == [["cancel", "8"], ["submit", "sbatch", "--nodes=1", "--exclude=n1"]]
    cluster.allocate("9", "n2")
    assert outcome(second) == "algo-2"


def test_the_last_of_its_acquisitions_that_is_cancelled_cancels_an_allocation(cluster: Slurm) -> None:
    first, second, third = cluster.acquire("algo-1", "algo-2", "algo-3")
    cluster.submitted("7")
    first.cancel()
    second.cancel()
    cluster.loop.advance()
    assert cluster.asked() == []
    third.cancel()
    cluster.loop.advance()
    assert cluster.asked() == [["cancel", "7"]]


def test_a_host_whose_acquisition_is_cancelled_leaves_its_node_to_the_others(cluster: Slurm) -> None:
    first, second = cluster.acquire("algo-1", "algo-2")
    first.cancel()
    cluster.allocate("7", "n1", "n2")
    assert outcome(second) == "algo-2"
    assert [(one.argv[2], one.argv[-1]) for one in cluster.sruns] == [("--nodelist=n1", "7")]


def test_a_submission_that_is_cancelled_meanwhile_is_cancelled_when_it_has_a_number(cluster: Slurm) -> None:
    [task] = cluster.acquire("algo-1")
    cluster.asked()
    task.cancel()
    cluster.loop.advance()
    assert cluster.asked() == []
    [again] = cluster.acquire("algo-1")
    assert cluster.asked() == [["submit", "sbatch", "--nodes=1"]]
    cluster.answer("submit", "submitted", job="7")
    assert cluster.asked() == [["cancel", "7"]]
    cluster.allocate("8", "n1")
    assert outcome(again) == "algo-1"


def test_what_is_asked_for_and_cancelled_in_one_turn_is_not_submitted(cluster: Slurm) -> None:

    async def ask() -> None:
        task = asyncio.ensure_future(cluster.provider.acquire("algo-1"))
        await asyncio.sleep(0)
        task.cancel()

    cluster.loop.run(ask())
    cluster.loop.advance()
    assert not cluster.keepers


NODE = {"name": "n1", "address": "127.0.0.1"}


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ({"event": "over", "state": "CANCELLED"}, "ended before it ran: the allocation was cancelled (scancel)"),
        ({"event": "running", "nodes": [NODE]}, "runs on 1 nodes, but 2 were requested"),
    ],
)
def test_an_allocation_that_does_not_run_fails_its_hosts(event: dict[str, Any], reason: str, cluster: Slurm) -> None:
    tasks = cluster.acquire("algo-1", "algo-2")
    cluster.submitted("7")
    cluster.answer("watch", **{"reason": "None", **event})
    assert [outcome(task) for task in tasks] == [f"Slurm job 7 {reason}"] * 2
    assert cluster.asked() == [["cancel", "7"]]


@pytest.mark.parametrize(
    ("address", "version", "reason"),
    [
        ("", "", "its address is not known here. Call fit() on a machine that reaches the nodes"),
        ("127.0.0.1", "2.7.18", f"is Python 2.7, but fit() runs on {sys.version_info[0]}.{sys.version_info[1]}. Name"),
    ],
)
def test_a_node_that_cannot_be_used_is_named(address: str, version: str, reason: str, cluster: Slurm) -> None:
    cluster.python_version = version
    [task] = cluster.acquire("algo-1")
    cluster.submitted("7")
    cluster.answer("watch", "running", nodes=[{**NODE, "address": address}])
    assert outcome(task).startswith("n1 (Slurm job 7): ") and reason in outcome(task)
    assert cluster.asked() == [["cancel", "7"]]


def test_nodes_that_were_lost_without_a_word_are_avoided_while_there_are_others(cluster: Slurm) -> None:
    [task] = cluster.acquire("algo-1")
    cluster.allocate("7", "n1")
    assert cluster.loop.run(cluster.agents["algo-1"]["source"].explain("it ended")) == "it ended"
    assert cluster.loop.now >= 2.0  # srun has not ended, and might have said why
    cluster.provider.release(task.result())
    [again] = cluster.acquire("algo-1")
    assert cluster.asked() == [["cancel", "7"], ["submit", "sbatch", "--nodes=1", "--exclude=n1"]]
    cluster.answer("submit", "refused", reason="Requested node configuration is not available")
    assert cluster.asked() == [["submit", "sbatch", "--nodes=1"]]
    cluster.answer("submit", "refused", reason="Requested node configuration is not available")
    assert outcome(again) == "sbatch refused the allocation: Requested node configuration is not available"


def test_a_notice_is_for_all_hosts_of_an_allocation(cluster: Slurm) -> None:
    tasks = cluster.acquire("algo-1", "algo-2")
    cluster.allocate("7", "n1", "n2")
    cluster.agents["algo-2"]["source"].signalled(15)
    cluster.loop.advance()
    assert cluster.asked() == [["look", "7"]]
    cluster.answer("look", "state", state="RUNNING", left=20.0)
    assert [cluster.loop.run(task.result().until_noticed()) for task in tasks] == [19.0, 19.0]


def test_a_host_of_an_allocation_that_somebody_cancels_is_lost_at_once(cluster: Slurm) -> None:
    [task] = cluster.acquire("algo-1")
    cluster.allocate("7", "n1")
    cluster.sruns[0].say(CANCELLED)
    cluster.agents["algo-1"]["source"].signalled(15)
    cluster.loop.advance()
    cluster.asked()
    cluster.answer("look", "state", state="CANCELLED", left=5.0)
    assert cluster.loop.run(task.result().until_lost()) == "the allocation was cancelled (scancel)"


@pytest.mark.parametrize("comes_back", [True, False])
def test_an_allocation_that_slurm_has_taken_is_waited_for_again(comes_back: bool, make: Callable[..., Slurm]) -> None:
    cluster = make(requeue=True)
    tasks = cluster.acquire("algo-1", "algo-2")
    cluster.allocate("7", "n1", "n2")
    cluster.sruns[0].say(PREEMPTED)
    cluster.sruns[0].end()
    why = cluster.loop.run(cluster.agents["algo-1"]["source"].explain("it ended"))
    assert why == "Slurm has given its node to another job"
    for task in tasks:
        cluster.provider.release(task.result())
    again = cluster.acquire("algo-1", "algo-2")
    assert cluster.asked() == [["again", "7"]]
    if comes_back:
        cluster.runs("n3", "n4", operation="again")
    else:
        cluster.answer("again", "over", state="CANCELLED", reason="")
        assert cluster.asked() == [["cancel", "7"], ["submit", "sbatch", "--nodes=2"]]
        cluster.allocate("8", "n1", "n2")
    assert [outcome(task) for task in again] == ["algo-1", "algo-2"]
    # No agent has had such a folder: one that is cut off may still remove its own.
    assert cluster.agents["algo-1"]["root"] == "job-1.2/hosts/algo-1"


def test_a_keeper_that_is_killed_is_followed_by_another(make: Callable[..., Slurm]) -> None:
    cluster = make(elastic=True)
    [first] = cluster.acquire("algo-1")
    cluster.allocate("7", "n1")
    [second] = cluster.acquire("algo-2")
    cluster.submitted("8")
    [third] = cluster.acquire("algo-3")
    cluster.asked()
    cluster.keepers[0].end()
    cluster.loop.advance()
    assert len(cluster.keepers) == 2
    cluster._questions.clear()
    assert sorted(cluster.asked()) == [["hold", "7"], ["hold", "8"], ["watch", "8"]]
    assert outcome(third) == "sbatch refused the allocation: the process that talks to Slurm was killed"
    cluster.runs("n2")
    assert (outcome(first), outcome(second)) == ("algo-1", "algo-2")
