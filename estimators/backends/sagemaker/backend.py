"""Create, follow and stop a job on Amazon SageMaker from the job's supervisor.

The job runs on SageMaker and continues if this process ends. Another supervisor then continues to follow the job.
Blocking calls run in a thread, and at most one poll of SageMaker runs at a time.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from container.contract import wire
from container.contract.environment import Machine
from container.contract.failures import Cause, Failure
from container.contract.frozen import dataclass
from container.system.background import Background
from estimators.backends.base import ManagedService
from estimators.backends.config import BackendFacts
from estimators.backends.events import (
    AttemptFailed,
    OutputRead,
    ServiceDescribed,
    ServiceEnded,
    ServiceRestarted,
    StatusTold,
    ValuesNoted,
)
from estimators.backends.placement import ClusterPlacement
from estimators.backends.sagemaker import mirror, packing, shipping
from estimators.backends.sagemaker.aws import Aws
from estimators.backends.sagemaker.explaining import (
    code_of,
    explain,
    is_denied,
    is_missing,
    is_taken,
    is_unanswered,
    meaning,
    needs_login,
    passes,
    remedy,
)  # fmt: skip
from estimators.backends.sagemaker.logs import LogFollower, ServiceLine
from estimators.backends.sagemaker.options import SageMakerOptions
from estimators.backends.sagemaker.pace import Pace
from estimators.backends.sagemaker.place import Place
from estimators.backends.sagemaker.tuning import SageMakerTuning
from estimators.job import instances
from estimators.job.errors import FleetfitError
from estimators.job.request import RunOptions, TrainingJobSpec
from estimators.records import status as statuses

#: Number of attempts to create the job if AWS cannot be reached, in addition to botocore's own attempts.
_CREATE_ATTEMPTS = 4
#: Number of attempts to find out whether an existing job was created by a request whose response was lost.
_DESCRIBE_ATTEMPTS = 8
#: Seconds without a response after which the user is warned. Polling continues.
_TELL_AFTER_S = 30.0
#: Seconds between two searches for log streams of restarted hosts.
_DISCOVER_S = 60.0
#: Seconds after a job's end in which reading its logs is retried.
_LAST_LOGS_S = 120.0


class _State(enum.Enum):
    PREPARING = "preparing"  # no request was sent to SageMaker yet
    CREATING = "creating"  # SageMaker may have the job
    FOLLOWING = "following"
    ENDED = "ended"


@dataclass(frozen=True, kw_only=True)
class _Look:
    """The result of one poll of SageMaker and CloudWatch.

    Attributes:
        description: DescribeTrainingJob's response, or None if this poll did not request the description.
        lines: The new log lines.
        more: Whether more lines can be read without a delay.
        logs_error: The error that occurred while the logs were read, or None if no error occurred.
    """

    description: Mapping[str, Any] | None
    lines: list[ServiceLine]
    more: bool = False
    logs_error: Exception | None = None


class SageMakerBackend(ManagedService):
    """A backend that runs one job on SageMaker.

    See :class:`estimators.backends.base.ManagedService` for the interface.
    """

    name = "ml"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        given = SageMakerOptions.of(self.options.backend_options)
        self._aws = self._connect()
        self._pace = Pace(poll_s=given.poll_seconds, hosts=self.spec.instance_count)
        self._background = Background(self.loop)
        self._place = Place(self.record)
        self._state = _State.PREPARING
        self._stop_asked = False
        self._may_exist = False  # whether SageMaker may have received an unanswered request to create the job
        self._life: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._follower: LogFollower | None = None
        self._known: list[mirror.Step] = []  # the steps of the job
        self._untold: list[mirror.Step] = []  # those steps that were not shown yet
        self._described: Mapping[str, Any] | None = None  # the last response of DescribeTrainingJob
        self._described_at = -_DISCOVER_S
        self._discovered_at = -_DISCOVER_S
        self._news_at = time.monotonic()
        self._failures = 0
        self._failing_since = 0.0
        self._told: set[str] = set()
        self._over_at: float | None = None  # when a poll first showed that the job has ended

    def _connect(self) -> Aws:
        given = SageMakerOptions.of(self.options.backend_options)
        return Aws(region=given.region, profile=given.profile)

    @classmethod
    def placement(cls, spec: TrainingJobSpec, options: RunOptions, record: Path) -> ClusterPlacement:
        """Return the placement of hosts that are SageMaker instances."""
        command = (*spec.algorithm.entry_point, *spec.algorithm.arguments)
        return ClusterPlacement(
            machine=Machine(
                python="python",
                cpus=instances.vcpus(spec.instance_type) or 1,
                gpus=instances.gpus(spec.instance_type),
                mpirun="mpirun",
                mpi_major=4,
                container_package="container",
            ),
            facts=BackendFacts(network_interface="eth0"),
            entry_points=dict.fromkeys(spec.hosts, command or ("python", "-m", "container", "train")),
        )

    @classmethod
    def check(cls, spec: TrainingJobSpec, options: RunOptions) -> None:
        """Refuse options that SageMaker or the image does not support."""
        SageMakerOptions.of(options.backend_options)
        shipping.check(spec, options)

    @classmethod
    def check_tuning(cls, spec: TrainingJobSpec, request: Mapping[str, Any]) -> None:
        """Refuse options that SageMaker's tuning jobs do not support."""
        SageMakerTuning.check(spec, request)

    @classmethod
    def tuning_service(cls, options: RunOptions) -> SageMakerTuning:
        """Return the client of SageMaker's tuning jobs."""
        return SageMakerTuning(options)

    @property
    def running(self) -> bool:
        """Return whether SageMaker has the job or may have it. Return False before the request to create the job, and
        when the job has ended.
        """
        return self._state in (_State.CREATING, _State.FOLLOWING)

    # --- creating ---

    def start(self, attempt: int) -> None:
        """Upload the code and create the job. If the job was created already, continue to follow the job."""
        stored = self.record.stored_status()
        self.attempt = int((stored or {}).get(statuses.OWN, {}).get("attempt") or 0)
        if statuses.lives_elsewhere(stored):
            self._state = _State.FOLLOWING
        else:
            self.events.put_nowait(StatusTold("Starting", "Packing and uploading the code"))
        self._life = self.loop.start(self._live())

    async def _live(self) -> None:
        """Create the job unless it exists, and follow it until it has ended."""
        if self._state is _State.FOLLOWING:
            await self._follow(self._place.restore())
        elif await self._upload() and await self._create_once():
            self.events.put_nowait(ValuesNoted({"taken": True}))
            self._state = _State.FOLLOWING
            if self._stop_asked:
                self.stop()
            await self._follow({})

    async def _upload(self) -> bool:
        """Upload the code, and return whether that succeeded."""
        wanted = shipping.uploads(self.spec, has_source=self.record.source_dir.is_dir())

        def say(text: str) -> None:
            self._background.tell(lambda: self._preparing(text))

        try:
            await self._background.call(
                lambda: packing.upload(self._aws, self.spec, self.record.source_dir, wanted, say)
            )
        except Exception as error:  # noqa: BLE001 - boto3's, of whatever kind
            self._give_up("the code could not be uploaded", error)
            return False
        return True

    def _preparing(self, text: str) -> None:
        if self._state is _State.PREPARING:
            self.events.put_nowait(StatusTold("Starting", text))

    async def _create_once(self) -> bool:
        """Create the job, and return whether SageMaker has accepted it."""
        self._state = _State.CREATING
        # Recorded before the request is sent. From now on, the job may exist even if this process is killed.
        self.events.put_nowait(ValuesNoted({"elsewhere": True}))
        request = self.spec.to_request()
        try:
            await self._background.call(lambda: self._create(request))
        except Exception as error:  # noqa: BLE001 - as above
            if is_taken(error):
                text = f"SageMaker already has a training job named {self.spec.name!r}: choose another job_name."
                self._refused(Failure(cause=Cause.CONFIGURATION, message=text))
            else:
                hint = "SageMaker may have received the request: check with `aws sagemaker list-training-jobs`."
                self._give_up("SageMaker did not accept the job", error, hint if self._may_exist else "")
            return False
        return True

    def _create(self, request: dict[str, Any]) -> str:
        """Create the job once, and return its ARN.

        If an earlier attempt created the job but SageMaker's response was lost, return the ARN of that job.
        """
        client = self._aws.client("sagemaker")
        since = time.time()
        for attempt in range(1, _CREATE_ATTEMPTS + 1):
            try:
                return str(client.create_training_job(**request)["TrainingJobArn"])
            except Exception as error:
                if is_taken(error):
                    there = self._existing(client)
                    if mirror.same_job(there, request, since):
                        return str(there["TrainingJobArn"])
                    self._may_exist = False
                    raise
                self._may_exist |= is_unanswered(error)
                if not passes(error) or attempt == _CREATE_ATTEMPTS:
                    raise
            time.sleep(self._pace.next_look(0.0, attempt))
        raise AssertionError("the last attempt returns or raises")

    def _existing(self, client: Any) -> Any:
        """Return SageMaker's description of the existing job with this job's name. After a temporary error, repeat the
        request, with at most eight attempts.
        """
        for attempt in itertools.count(1):
            try:
                return client.describe_training_job(TrainingJobName=self.spec.name)
            except Exception as error:
                if not passes(error) or attempt == _DESCRIBE_ATTEMPTS:
                    raise
            time.sleep(self._pace.next_look(0.0, attempt))
        raise AssertionError("the last attempt returns or raises")

    def _give_up(self, what: str, error: Exception, hint: str = "") -> None:
        said = str(error) if isinstance(error, FleetfitError) else meaning(error)
        advice = "" if isinstance(error, FleetfitError) else remedy(error)
        hints = tuple(text for text in (advice, hint) if text)
        self._refused(Failure(cause=Cause.LAUNCH, message=f"{what}: {said}", hints=hints))

    def _refused(self, failure: Failure) -> None:
        self._state = _State.ENDED
        self.events.put_nowait(ValuesNoted({"elsewhere": False}))
        self.events.put_nowait(AttemptFailed(failure))

    # --- following ---

    async def _follow(self, place: dict[str, Any]) -> None:
        """Poll SageMaker and CloudWatch in a thread until the job has ended."""
        streams = place.get("streams")
        self._follower = LogFollower(self._aws.client("logs"), self.spec.name, self.spec.instance_count, streams)
        self._known = [(float(began), str(text)) for began, text in place.get("steps") or ()]
        saved: dict[str, Any] | None = None
        while True:
            if (here := self._here) != saved:  # the lines of the last poll have been written by now
                self._place.save(here)
                saved = here
            try:
                look = await self._background.call(self._ask)
            except Exception as error:  # noqa: BLE001 - whatever the error, the job goes on
                pause = self._unseen(error)
            else:
                pause = self._seen(look)
            if pause is None:
                return
            await asyncio.sleep(pause)

    @property
    def _here(self) -> dict[str, Any]:
        """Return the position up to which the logs were read, and SageMaker's status transitions (such as
        ``Downloading``) that were already shown.
        """
        assert self._follower is not None
        told = self._known[: len(self._known) - len(self._untold)]
        return {"streams": self._follower.cursor, "steps": [list(step) for step in told]}

    def _ask(self) -> _Look:
        assert self._follower is not None
        now = time.monotonic()
        over = self._over_at is not None
        description = None
        if not over and now - self._described_at >= self._pace.describe_after(now - self._news_at):
            description = self._aws.client("sagemaker").describe_training_job(TrainingJobName=self.spec.name)
        stepped = description is not None and len(mirror.steps_of(description)) != len(self._known)
        # After a step, hosts may have been restarted.
        discover = over or stepped or not self._follower.complete or now - self._discovered_at >= _DISCOVER_S
        if discover:
            self._discovered_at = now
        try:
            return _Look(
                description=description, lines=self._follower.read(discover=discover), more=self._follower.more
            )
        except Exception as error:  # noqa: BLE001 - whatever the error, the description is still valid
            return _Look(description=description, lines=[], logs_error=error)

    def _seen(self, look: _Look) -> float | None:
        """Report the result of a poll.

        Returns:
            The number of seconds until the next poll. None after the last poll.
        """
        if "unreachable" in self._told:
            self._told.discard("unreachable")
            self._say("SageMaker answers again.")
        waiting = look.logs_error is not None and passes(look.logs_error)  # the logs may be readable later
        if self._failures:
            self.events.put_nowait(ValuesNoted({"unanswered": 0}))
        self._failures = self._failures + 1 if waiting else 0
        if look.logs_error is not None and not waiting:
            self._warn_once("logs", f"the logs cannot be read: {explain(look.logs_error)}")
        if look.description is not None:
            self._take_description(look.description)
        now = time.monotonic()
        for line in look.lines:
            self._news_at = now
            self._tell_steps(until_ns=line.time_ns)
            self._take_line(line)
        if self._over_at is None:
            self._tell_steps()
            return 0.0 if look.more else self._pace.next_look(now - self._news_at, self._failures)
        settled = not (look.lines or look.more or waiting) and now - self._over_at >= self._pace.settle_s
        if settled or (waiting and now - self._over_at >= _LAST_LOGS_S):
            if look.logs_error is not None:
                self._warn_once("logs", f"the last log lines could not be read: {explain(look.logs_error)}")
            self._end()
            return None
        return 0.0 if look.more else self._pace.next_look(0.0, self._failures)

    def _take_description(self, answer: Mapping[str, Any]) -> None:
        """Store the job's description, and queue its new steps (SageMaker's status transitions) for display."""
        before, self._described = self._described, answer
        self._described_at = time.monotonic()
        status = mirror.status_of(answer)
        steps = mirror.steps_of(status)
        self._untold += mirror.news(self._known, steps)
        self._known = steps
        if mirror.is_over(answer):
            self._over_at = time.monotonic()  # the end is reported after all log lines were read
        elif before is None or mirror.status_of(before) != status:
            self._news_at = time.monotonic()
            self.events.put_nowait(ServiceDescribed(status))

    def _tell_steps(self, until_ns: float = math.inf) -> None:
        """Show the job's steps that began at or before ``until_ns``.

        The steps and the log lines thus appear in the order of their times.
        """
        while self._untold and self._untold[0][0] * 1e9 <= until_ns:
            began, text = self._untold.pop(0)
            self._say(f"SageMaker: {text}", int(began * 1e9))

    def _take_line(self, line: ServiceLine) -> None:
        if line.attempt > self.attempt:
            self.attempt = line.attempt
            self.events.put_nowait(ServiceRestarted(line.attempt))
        self.events.put_nowait(OutputRead(line.host, line.data, line.time_ns))

    def _unseen(self, error: Exception) -> float | None:
        """Handle a failed poll. The job continues at SageMaker, so polling continues with growing delays.

        Returns:
            The number of seconds until the next poll. None if the job is not followed any more.
        """
        if is_missing(error) and not isinstance(error, OSError):
            self._gone(error)
            return None
        if needs_login(error):
            self._reconnect()
        now = time.monotonic()
        if self._failures == 0:
            self._failing_since = now
        self._failures += 1
        # This also detects that the record was removed.
        self.events.put_nowait(ValuesNoted({"unanswered": self._failures}))
        if not self.running:
            return None
        if not passes(error) or now - self._failing_since >= _TELL_AFTER_S:
            kind = "was denied" if is_denied(error) else "failed"
            self._warn_once(
                "unreachable",
                f"a request to SageMaker {kind}: {explain(error)} The job goes on at SageMaker, and fleetfit tries "
                "again.",
            )
        return self._pace.next_look(0.0, self._failures)

    def _reconnect(self) -> None:
        """Read the credentials again, because the user may have logged in since the last request."""
        assert self._follower is not None
        try:
            self._aws = self._connect()
            self._follower.client = self._aws.client("logs")
        except FleetfitError as error:
            self._warn_once("configuration", str(error))

    def _gone(self, error: Exception) -> None:
        """Handle SageMaker's error that the job does not exist. The job was either never created or deleted."""
        stored = self.record.stored_status() or {}
        if not stored.get(statuses.OWN, {}).get("taken"):
            text = "the job was not created: its supervisor ended before SageMaker had accepted it."
            self._refused(Failure(cause=Cause.LAUNCH, message=text))
            return
        self._state = _State.ENDED
        failure = Failure(cause=Cause.HOST_LOST, message=f"SageMaker no longer has the job: {meaning(error)}")
        now = time.time()
        last = mirror.status_of(self._described) if self._described is not None else stored
        ended = {"TrainingJobStatus": "Failed", "SecondaryStatus": "Failed", "LastModifiedTime": now}
        kept = {name: value for name, value in last.items() if name != statuses.OWN}
        last = {**kept, **ended, "TrainingEndTime": now, "FailureReason": failure.reason()}
        self.events.put_nowait(ServiceEnded(last, failure))

    def _end(self) -> None:
        self._tell_steps()
        self._state = _State.ENDED
        assert self._described is not None
        self.events.put_nowait(ServiceEnded(mirror.status_of(self._described), mirror.failure_of(self._described)))

    def _say(self, text: str, time_ns: int | None = None) -> None:
        """Write a message of fleetfit into the log."""
        host = self.spec.hosts[0]
        tag = wire.prefix(host, None).encode()
        self.events.put_nowait(OutputRead(host, wire.encode_piece(tag, f"{text}\n".encode()), time_ns))

    def _warn_once(self, key: str, text: str) -> None:
        if key not in self._told:
            self._told.add(key)
            self.warn(text)

    # --- ending ---

    def stop(self) -> None:
        """Request that SageMaker stop the job. SageMaker gives the scripts two minutes to exit.

        If the job is not created yet, the request is sent after the creation.
        """
        sending = self._stopping is not None and not self._stopping.done()
        if self._state is _State.FOLLOWING and not sending:
            self._stopping = self.loop.start(self._send_stop())
        self._stop_asked = True

    def _ask_to_stop(self) -> None:
        self._aws.client("sagemaker").stop_training_job(TrainingJobName=self.spec.name)

    async def _send_stop(self) -> None:
        """Send the stop request. Retry until SageMaker has received the request, or the job has ended."""
        for attempt in itertools.count(1):
            if self._state is not _State.FOLLOWING:
                return
            self._described_at = -_DISCOVER_S  # poll the description at once
            try:
                await self._background.call(self._ask_to_stop)
                return
            except Exception as error:  # noqa: BLE001 - whatever it is
                login = needs_login(error)
                settled = code_of(error) and not (passes(error) or login or is_denied(error))
                if self._state is not _State.FOLLOWING or settled:
                    return  # the job is ending already; its status will show that
                if not passes(error):
                    self._warn_once("stop", f"the job could not be stopped yet: {explain(error)}")
                if login:
                    self._reconnect()
            await asyncio.sleep(self._pace.next_look(0.0, attempt))

    def kill_host(self, host: str) -> None:
        """Do nothing, because SageMaker cannot kill single hosts. :meth:`check` refuses options that need this
        method.
        """

    def end_now(self) -> None:
        """Cancel the start if no request was sent to SageMaker yet.

        Otherwise, do nothing: the job may exist at SageMaker, where it continues to run.
        """
        if self._state is _State.PREPARING:
            self.cleanup()

    def cleanup(self) -> None:
        """Stop polling. Log lines that were read but not written to the record yet are read again by the next
        supervisor.
        """
        for task in (self._life, self._stopping):
            if task is not None:
                task.cancel()
        self._state = _State.ENDED
