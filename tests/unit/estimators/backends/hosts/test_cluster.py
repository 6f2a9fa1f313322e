"""What a cluster decides for a job's hosts: starts, stops, losses and notices, with hosts that are values."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from values import BridgingProvider, Job, ValueHost, ValueProvider, job_on_values

from container.contract.failures import Cause
from container.contract.strategies import MPI, CollectiveAllReduce, Distribution, ElasticHorovod
from estimators.backends.base import HostEnd
from estimators.backends.hosts import cluster as clusters

NewJob = Callable[..., Job]


@pytest.fixture
def new_job(tmp_path: Path) -> Iterator[NewJob]:
    """Makes a job on hosts that are values."""
    with contextlib.ExitStack() as jobs:

        def make(strategy: Distribution | None = MPI(), hosts: int = 2, **more: Any) -> Job:  # noqa: B008 - a value
            return jobs.enter_context(job_on_values(tmp_path, strategy, hosts, **more))

        yield make


@pytest.fixture
def started(new_job: NewJob) -> NewJob:
    """Makes such a job and starts it; its hosts come when the test gives them, or wait in operations, if it says so."""

    def start(*given: Any, waits: bool = False, waiting_for: Sequence[str] = (), **more: Any) -> Job:
        job = new_job(*given, **more)
        job.provider.waits, job.provider.waiting_for = waits, set(waiting_for)
        job.start()
        return job

    return start


@pytest.fixture
def job(started: NewJob) -> Job:
    """A gang of two hosts that train."""
    return started()


class TestStart:
    def test_a_gang_is_started_when_all_of_it_is_ready(self, started: NewJob) -> None:
        job = started(MPI(), 3, waits=True)
        assert list(job.provider.asked) == ["algo-1", "algo-2", "algo-3"]
        job.give("algo-3", "algo-1")
        assert not job.host(1).trains and not job.cluster.running
        job.give("algo-2")
        assert all(job.host(number).trains for number in (1, 2, 3)) and job.cluster.running
        assert job.told == [("status", "Training", "")]
        addresses = {job.host(number).toolkit.env["FLEETFIT_CONTROL_ADDRESS"] for number in (1, 2, 3)}
        assert addresses == {"10.0.0.1:7000"}

    def test_hosts_of_an_elastic_job_wait_for_nobody(self, started: NewJob) -> None:
        job = started(ElasticHorovod(), waits=True)
        job.give("algo-2")
        assert job.host(2).trains and list(job.provider.asked) == ["algo-1"]
        job.cluster.add_host(job.cluster.next_host())
        job.advance()
        job.give("algo-3")
        assert job.host(3).trains

    def test_toolkits_of_many_hosts_are_started_in_turns(
        self, new_job: NewJob, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(clusters, "_STARTING_S", -1.0)
        job = new_job(MPI(), 4)
        turns: list[int] = []

        def look() -> None:
            turns.append(sum(host.trains for host in job.provider.hosts.values()))
            if turns[-1] < 4:
                job.loop.call_soon(look)

        job.cluster.start(0)
        job.loop.call_soon(look)
        job.advance()
        assert {1, 2, 3, 4} <= set(turns)

    def test_a_stop_between_the_turns_leaves_out_the_others(
        self, new_job: NewJob, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(clusters, "_STARTING_S", -1.0)
        job = new_job(MPI(), 4)

        def stop() -> None:
            if job.provider.hosts and job.host(1).trains:
                job.cluster.stop()
            else:
                job.loop.call_soon(stop)

        job.cluster.start(0)
        job.loop.call_soon(stop)
        job.advance()
        unstarted = [name for name, host in job.provider.hosts.items() if not host.trains]
        assert unstarted and sorted(end.host for end in job.ends) == sorted(unstarted)
        assert job.host(1).toolkit.signals == [signal.SIGTERM]
        job.host(1).toolkit.end(0)
        for name in job.provider.hosts.keys() - set(unstarted) - {"algo-1"}:
            job.provider.hosts[name].toolkit.end(0)
        job.advance()
        assert len(job.ends) == 4 and not job.cluster.running

    @pytest.mark.parametrize(
        ("strategy", "provider", "reason", "said"),
        [
            (None, BridgingProvider, "", None),
            (None, BridgingProvider, "no forwarding", "and fleetfit cannot forward the connection: no forwarding."),
            (None, ValueProvider, "", "need direct connections between the hosts"),
            (CollectiveAllReduce(), BridgingProvider, "", "need direct connections between the hosts"),
        ],
    )
    def test_a_host_that_does_not_reach_the_first_has_a_bridge_or_fails_the_job(
        self, started: NewJob, strategy: Distribution | None, provider: Any, reason: str, said: str | None
    ) -> None:
        job = started(strategy, provider=provider, waits=True)
        job.provider.reason = reason  # type: ignore[attr-defined]
        job.provider.give("algo-1")
        job.provider.asked["algo-2"].set_result(unreachable := _unreachable("algo-2"))
        job.advance()
        assert "reach 10.0.0.1:7000" in unreachable.does
        if said is None:
            assert unreachable.toolkit.env["FLEETFIT_CONTROL_ADDRESS"] == "127.0.0.1:9000"
        else:
            assert said in job.failures[0] and not unreachable.trains

    def test_what_cannot_be_copied_fails_the_job_once(self, started: NewJob) -> None:
        job = started(waits=True)
        for name in ("algo-1", "algo-2"):
            job.provider.asked[name].set_result(host := _unreachable(name))
            host.fails = {"push": "the disk is full"}
        job.advance()
        assert len(job.failures) == 1 and job.failures[0].endswith("could not be copied to algo-1: the disk is full")


class TestStop:
    def test_a_stop_that_overtakes_a_start_cancels_it(self, started: NewJob) -> None:
        job = started(waits=True)
        job.give("algo-2")
        job.cluster.end_now()
        job.advance(1.0)
        assert job.provider.cancelled == ["algo-1"] and job.told == []
        job.start(1)  # the host that was there is kept
        assert list(job.provider.asked) == ["algo-1"]
        job.give("algo-1")
        assert job.host(1).trains and job.host(2).trains

    def test_what_does_not_end_is_killed_half_a_second_later(self, job: Job) -> None:
        job.cluster.end_now()
        job.advance(0.4)
        assert job.host(1).toolkit.signals == [signal.SIGINT] and not job.host(1).aborted
        job.host(2).toolkit.end(130)
        job.advance(0.2)
        assert [job.host(number).aborted for number in (1, 2)] == [1, 0]
        job.end(1, code=None, signal=signal.SIGKILL)
        assert [(end.host, end.failure) for end in job.ends] == [("algo-2", None), ("algo-1", None)]

    def test_the_kill_of_one_attempt_does_not_meet_the_next(self, job: Job) -> None:
        job.cluster.end_now()
        job.end(1, 2, code=1)
        job.advance(0.1)
        job.start(1)
        job.advance(5.0)
        assert job.host(1).aborted == job.host(2).aborted == 0

    def test_a_host_that_is_withdrawn_is_not_waited_for(self, started: NewJob) -> None:
        job = started(ElasticHorovod(), waits=True)
        job.cluster.withdraw("algo-2")
        job.advance()
        assert job.provider.cancelled == ["algo-2"] and job.ends == [HostEnd(host="algo-2")]

    def test_a_stop_of_an_elastic_job_does_not_wait_for_a_host_that_is_being_prepared(self, started: NewJob) -> None:
        job = started(ElasticHorovod(), waits=True)
        job.give("algo-1")
        job.cluster.stop()
        job.advance()
        assert job.provider.cancelled == ["algo-2"] and [end.host for end in job.ends] == ["algo-2"]
        assert job.host(1).toolkit.signals == [signal.SIGTERM]

    def test_cleanup_releases_the_hosts_and_closes_the_provider(self, started: NewJob) -> None:
        job = started(waits=True)
        job.give("algo-1")
        job.cluster.cleanup()
        job.advance()
        assert job.provider.released == ["algo-1"] and job.host(1).closed
        assert job.provider.cancelled == ["algo-2"] and job.provider.closed


class TestEnd:
    def test_the_last_end_is_told_when_all_that_was_saved_is_here(self, job: Job) -> None:
        for number in (1, 2):
            job.host(number).syncs_end = False
        job.end(1, 2)
        assert [end.host for end in job.ends] == ["algo-1"] and job.cluster.running
        for number in (1, 2):
            [sync] = [process for process in job.host(number).processes if "sync" in process.argv]
            assert sync.input_closed
            sync.end(0)
        job.advance()
        assert [end.host for end in job.ends] == ["algo-1", "algo-2"] and not job.cluster.running

    @pytest.mark.parametrize(
        ("end", "code", "said"),
        [
            ({"code": 3}, 3, None),
            ({"code": None, "signal": 9}, None, "the host's training process was killed by SIGKILL."),
            ({"code": None, "error": "no such file"}, 255, "algo-1 could not be started: no such file"),
        ],
    )
    def test_how_a_toolkit_ended_is_told(self, job: Job, end: Any, code: int | None, said: str | None) -> None:
        job.end(1, **end)
        [told] = job.ends
        assert told.exit_code == code and (told.failure.message if told.failure is not None else None) == said

    def test_a_host_of_an_elastic_job_that_ends_is_given_back_when_its_outputs_are_here(self, started: NewJob) -> None:
        job = started(ElasticHorovod())
        job.host(2).waits.add("pull")
        job.end(2)
        assert [end.host for end in job.ends] == ["algo-2"] and job.provider.released == []
        job.go_on(2, "pull")
        assert job.provider.released == ["algo-2"]

    @pytest.mark.parametrize("lost", [False, True])
    def test_outputs_are_collected_from_all_hosts(self, job: Job, lost: bool) -> None:
        job.end(1, 2)
        job.host(2).waits.add("pull")
        job.cluster.collect_outputs()
        job.advance()
        assert job.of_kind("collected") == []
        if lost:
            job.host(2).lose("no sign of life")
        job.go_on(2, "pull")
        [(failure,)] = job.of_kind("collected")
        if lost:
            assert failure.cause is Cause.HOST_LOST
            assert failure.message == "algo-2 was lost while its outputs were brought here: no sign of life."
        else:
            assert failure is None


class TestLoss:
    @pytest.mark.parametrize("stage", ["acquire", "push", "list", "reach"])
    def test_a_host_of_a_gang_that_is_lost_before_it_trains_fails_the_attempt(
        self, started: NewJob, stage: str
    ) -> None:
        job = started(waits=True, waiting_for={stage})
        if stage == "acquire":
            job.provider.give("algo-1")
            job.refuse("algo-2", "the queue is closed")
        else:
            job.give("algo-1", "algo-2")
            if stage != "reach":
                job.go_on(1, stage)
            job.lose(2, "no sign of life")
        reason = "no machine was found for this host: the queue is closed."
        assert job.failures == [reason if stage == "acquire" else "the host was lost: no sign of life."]
        assert job.ends == [] and not job.cluster.running

    def test_one_that_waits_for_the_others_too(self, started: NewJob) -> None:
        job = started(waits=True)
        job.give("algo-2")
        job.lose(2, "its machine was turned off")
        assert job.failures == ["the host was lost: its machine was turned off."]
        assert job.provider.cancelled == ["algo-1"]

    @pytest.mark.parametrize("turns", range(12))
    @pytest.mark.parametrize("strategy", [MPI(), ElasticHorovod()], ids=["gang", "elastic"])
    def test_one_that_is_lost_as_it_gets_ready_is_not_started(
        self, started: NewJob, strategy: Distribution, turns: int
    ) -> None:
        job = started(strategy, 1, waiting_for={"push"})
        job.host(1).go_on("push")

        def lose(left: int) -> None:
            if left:
                job.loop.call_soon(lambda: lose(left - 1))
            else:
                job.host(1).lose("no sign of life")

        lose(turns)
        job.advance()
        assert not job.cluster.running and len(job.failures) + len(job.ends) == 1

    def test_one_that_trains_ends(self, job: Job) -> None:
        job.lose(2, "no sign of life")
        assert job.failures == []
        [end] = job.ends
        assert end.failure is not None and end.failure.cause is Cause.HOST_LOST

    def test_the_next_attempt_gets_another_one(self, job: Job) -> None:
        kept, lost = job.host(1), job.host(2)
        lost.lose("no sign of life")
        job.end(1, code=1)
        job.start(1)
        assert job.host(1) is kept and job.host(2) is not lost
        assert job.host(2).trains and job.provider.released == ["algo-2"]

    def test_the_others_of_an_elastic_job_meet_without_one_that_was_lost_before_it_trained(
        self, started: NewJob
    ) -> None:
        job = started(ElasticHorovod(), waiting_for={"push"})
        job.host(1).lose("no sign of life")
        job.go_on(2, "push")
        assert job.host(2).trains and job.cluster.meeting_place() == ("10.0.0.254", "eth0")

    def test_an_elastic_job_goes_on_while_others_may_come(self, started: NewJob) -> None:
        job = started(ElasticHorovod(), waits=True)
        job.refuse("algo-1", "none is free")
        assert job.failures == [] and [end.host for end in job.ends] == ["algo-1"]
        job.refuse("algo-2", "none is free")
        assert job.failures == ["no machine was found for this host: none is free."]


class TestNotice:
    def test_one_that_trains_interrupts_the_attempt_and_is_replaced_for_the_next(self, job: Job) -> None:
        first = job.host(2)
        first.notice(20.0)
        first.notice(19.0)
        job.advance()
        assert job.of_kind("interrupted") == [["algo-2", 20.0]] and job.provider.released == []
        job.end(1, 2)
        job.start(1)
        assert job.provider.released == ["algo-2"] and job.host(2) is not first and job.host(2).trains

    @pytest.mark.parametrize("had", ["prepared", "being prepared"])
    def test_one_that_waits_for_another_is_replaced_at_once(self, started: NewJob, had: str) -> None:
        job = started(waits=True, waiting_for={"push"} if had == "being prepared" else ())
        job.give("algo-2")
        job.notice(2, 20.0)
        assert job.provider.released == ["algo-2"] and set(job.provider.asked) == {"algo-1", "algo-2"}
        job.provider.waiting_for = set()
        job.give("algo-1")
        assert not job.host(1).trains
        job.give("algo-2")
        assert job.host(1).trains and job.host(2).trains
        assert job.of_kind("interrupted") == [] and job.failures == []

    def test_one_that_comes_as_the_next_attempt_begins_finds_no_start_to_cancel(self, started: NewJob) -> None:
        job = started(waits=True)
        job.give("algo-1")
        job.cluster.end_now()
        job.cluster.start(1)
        job.notice(1, 20.0)
        assert job.failures == [] and job.provider.released == ["algo-1"]

    def test_those_of_an_elastic_job_are_told(self, started: NewJob) -> None:
        job = started(ElasticHorovod())
        job.notice(1, 20.0)
        assert job.of_kind("interrupted") == [["algo-1", 20.0]] and job.provider.released == []


class TestCheckpoints:
    def test_every_host_has_the_newest_when_all_is_shared(self, started: NewJob) -> None:
        job = started(ElasticHorovod())
        before = {number: _restores(job, number) for number in (1, 2)}
        job.loop.run(job.cluster.share_checkpoints())
        # What all have saved comes here, then it goes to all.
        assert {number: _restores(job, number) - before[number] for number in (1, 2)} == {1: 2, 2: 2}

    @pytest.mark.parametrize("end", ["is let go", "is lost"])
    def test_a_host_that_goes_meanwhile_is_not_waited_for(self, started: NewJob, end: str) -> None:
        job = started(ElasticHorovod())
        leaving = job.host(2)
        leaving.syncs_end = False
        sharing = job.loop.start(job.cluster.share_checkpoints())
        job.advance()
        assert not sharing.done()
        if end == "is let go":
            job.cluster._members["algo-2"].release()
        else:
            leaving.lose("no sign of life")
        job.advance()
        assert sharing.done() and sharing.exception() is None

    def test_two_that_ask_for_the_same_host_at_once_are_served_once(self, started: NewJob) -> None:
        job = started(ElasticHorovod())
        before = _restores(job, 1)
        asking = [job.loop.start(job.cluster.refresh_checkpoints("algo-1")) for _ in range(2)]
        job.advance()
        assert all(one.done() for one in asking) and _restores(job, 1) == before + 1


def test_a_limit_that_the_provider_has_reached_is_told(job: Job) -> None:
    job.provider.job.limit("the budget of $5 is spent")
    assert job.of_kind("limit") == [["the budget of $5 is spent"]]


def test_a_job_that_has_begun_to_train_does_not_go_back_to_pending(started: NewJob) -> None:
    job = started(ElasticHorovod(), waits=True)
    job.provider.job.tell("no room yet")
    job.give("algo-1", "algo-2")
    job.provider.job.tell("somebody waits")  # something trains: nobody has to know
    for number in (1, 2):
        job.host(number).lose("no sign of life")
    job.advance()
    job.provider.job.tell("no room for the host that is lost")
    assert job.of_kind("status") == [
        ["Pending", "no room yet"],
        ["Training", ""],
        ["Training", "no room for the host that is lost"],
    ]


def _unreachable(name: str) -> ValueHost:
    host = ValueHost(name)
    host.fails = {"reach": "connection refused"}
    return host


def _restores(job: Job, number: int) -> int:
    return job.host(number).does.count("list ml/checkpoints")
