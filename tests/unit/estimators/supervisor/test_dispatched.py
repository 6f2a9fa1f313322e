"""What the keeper of a job's copy does when the dispatcher takes the job, refuses it, or is not reached."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from values import VirtualLoop

from container.contract import hyperparameters as codec
from container.contract import rules
from container.contract.messages import Message
from estimators.backends import dispatchers
from estimators.backends.dispatchers.base import Dispatcher, DispatchRefused, Parcel, Unreached
from estimators.job.request import Algorithm, JobOptions, OutputConfig, Resources, TrainingJobSpec
from estimators.records import status as statuses
from estimators.records.record import JobRecord
from estimators.records.states import SecondaryStatus
from estimators.supervisor.dispatched import DispatchedJob


class Script(Dispatcher):
    """Does what the test says.

    Attributes:
        submits: What becomes of the job: None if it is taken, or what is raised; without an entry it takes for ever.
        follows: What is read each time: messages and news, then what is raised, if anything.
        asked: What was passed on.
    """

    kind: ClassVar[str] = "script"
    submits: ClassVar[list[Exception | None]]
    follows: ClassVar[list[list[Message | str | Exception]]]
    asked: ClassVar[list[Message]]

    @classmethod
    def check(cls, place: str, options: Mapping[str, Any]) -> None: ...

    async def prepare(self) -> None:
        if not self.submits:
            await asyncio.Event().wait()

    async def submit(self, parcel: Parcel) -> None:
        if (error := self.submits.pop(0)) is not None:
            raise error

    async def follow(self, name: str, have: Mapping[str, Any]) -> AsyncGenerator[Message, None]:
        for said in self.follows.pop(0) if self.follows else [Unreached("no route")]:
            if isinstance(said, Exception):
                raise said
            if isinstance(said, str):
                self.news.put_nowait(said)
                await asyncio.sleep(1)
            else:
                yield said

    async def ask(self, message: Message) -> Message:
        self.asked.append(message)
        return {"ok": True}

    def close(self) -> None: ...


class World:
    """A job's copy."""

    def __init__(self, folder: Path) -> None:
        self.loop = VirtualLoop()
        self.record = JobRecord.create("job-1", folder)
        spec = TrainingJobSpec(
            name="job-1",
            algorithm=Algorithm(),
            hyperparameters=codec.encode({codec.PROGRAM: "train.py"}),
            output=OutputConfig(path=str(folder / "jobs")),
            resources=Resources(instance_type="local_process", instance_count=1),
        )
        self.record.write_request(spec.to_request())
        self.record.write_options(rules.to_dict(JobOptions(backend="local_process", dispatcher="far")))
        self.job = DispatchedJob(self.loop, self.record)
        self.keeping = self.loop.start(self.job.keep())

    def ask(self, **message: Any) -> list[dict[str, Any]]:
        asked = self.loop.start(self.job.answer(message))
        self.loop.advance()
        return [asked.result()]

    @property
    def status(self) -> dict[str, Any]:
        status = self.record.stored_status()
        assert status is not None
        return status

    def close(self) -> None:
        self.job.close()
        self.loop.close()
        self.record.release()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path))
    monkeypatch.setattr(dispatchers, "load", lambda place: Script)
    Script.submits, Script.follows, Script.asked = [], [], []
    one = World(tmp_path)
    yield one
    one.close()


THERE: Message = {"op": "job", "jobs": "/there/jobs"}
END: Message = {"op": "end"}


def test_a_job_that_is_taken_is_followed_to_its_end(world: World) -> None:
    Script.submits, Script.follows = [None], [[THERE, END]]
    world.loop.advance()
    assert world.keeping.done()
    own = world.status["Fleetfit"]
    assert own["taken"] and own["elsewhere"]


def test_a_job_that_is_refused_has_failed_with_the_reason(world: World) -> None:
    Script.submits = [DispatchRefused("instance_count=4")]
    world.loop.advance()
    assert world.keeping.done()
    assert world.status["FailureReason"] == "dispatcher far: instance_count=4."
    assert world.status["Fleetfit"]["elsewhere"] is False


def test_whether_a_job_was_taken_when_the_connection_broke_following_tells(world: World) -> None:
    missing: Message = {"op": "missing", "error": "there is no training job 'job-1'"}
    Script.submits, Script.follows = [Unreached("it was cut")], [[Unreached("no route")], [missing]]
    world.loop.advance(5)
    assert world.keeping.done()
    assert "far: there is no training job 'job-1' (no route)." in world.status["FailureReason"]


@pytest.mark.parametrize("steps", [[], ["Downloading", "Restarting"], ["Downloading", "Training"]])
def test_news_while_a_job_is_followed_leaves_the_jobs_status_as_it_is(world: World, steps: list[str]) -> None:
    there = statuses.new_status(world.record.read_request(), 1.0)
    for step in steps:
        there = statuses.transition(there, SecondaryStatus(step), 2.0)
    Script.submits = [None]
    Script.follows = [[THERE, {"op": "status", "status": there}], ["installing 40 packages", END]]
    Script.follows[0].append(Unreached("it was cut"))
    world.loop.advance(10)
    assert world.keeping.done() and world.keeping.exception() is None
    assert world.status["SecondaryStatusTransitions"] == there["SecondaryStatusTransitions"]


def test_whether_a_job_was_taken_when_its_submission_failed_here_following_tells(world: World) -> None:
    Script.submits, Script.follows = [FileNotFoundError(2, "No such file", "job.zip")], [[THERE, END]]
    world.loop.advance(5)
    assert world.keeping.done() and "FailureReason" not in world.status
    assert world.status["Fleetfit"]["elsewhere"] is True


def test_a_dispatcher_that_is_not_reached_is_tried_again_and_those_who_ask_are_told(world: World) -> None:
    Script.submits = [None]
    world.loop.advance(59)
    assert world.ask(op="ping") == [{"ok": True}]
    world.loop.advance(5)
    [answer] = world.ask(op="ping")
    assert "has not been reached for 6" in answer["error"] and "(no route)" in answer["error"]
    Script.follows = [[THERE, END]]
    world.loop.advance(15)
    assert world.keeping.done()


def test_nobody_tries_for_ever(world: World) -> None:
    Script.submits = [None]
    world.loop.advance(1790)
    assert not world.keeping.done()
    world.loop.advance(30)
    assert world.keeping.done()


def test_a_job_that_the_dispatcher_does_not_have_yet_is_stopped_here(world: World) -> None:
    world.loop.advance()
    waiting = world.loop.start(world.job.answer({"op": "resize"}))
    world.loop.advance()
    assert world.ask(op="stop") == [{"ok": True}]
    world.loop.advance()
    assert world.keeping.done() and world.status["TrainingJobStatus"] == "Stopped"
    assert waiting.result() == {"ok": False, "error": "resize: the job has already ended."}


def test_what_is_asked_before_the_dispatcher_has_the_job_is_passed_on_when_it_has(world: World) -> None:
    world.loop.advance()
    answer = world.loop.start(world.job.answer({"op": "resize"}))
    world.loop.advance()
    assert not Script.asked
    world.job._found(dict(THERE))
    world.loop.advance()
    assert Script.asked == [{"op": "resize"}] and answer.result() == {"ok": True}
