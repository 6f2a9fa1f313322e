"""Simulate one run of an elastic job, whose hosts join and leave during the training.

The package SimPy simulates the clock and the hosts. The supervisor's real code decides which hosts are members, and
applies the limits. In a real job, all workers of a host start, train and stop together. Therefore a simulated host has
only one worker, and limits are numbers of hosts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from estimators.client.simulation.model import RunOutcome, SimulatedJob, Stretch, spot_interruptions
from estimators.job.errors import ConfigurationError
from estimators.job.spot_market import Interruption, SpotMarket
from estimators.supervisor.elastic.course import TRANSITIONS, State, TrainingEvent
from estimators.supervisor.elastic.deciding import decide
from estimators.supervisor.elastic.members import ElasticHost, HostState, Roster, WorkerState
from estimators.supervisor.elastic.policy import Limits

#: The type of SimPy's processes.
Steps = Iterator[Any]
#: Minimum time between two decisions about the membership, in seconds, as in a real job.
_AGAIN_S = 0.1
#: A run is aborted after this many interruptions: the first number, plus the second number for each host.
_HOPELESS, _HOPELESS_FOR_A_HOST = 1000, 100


def run(job: SimulatedJob, market: SpotMarket, limits: Limits, limit_s: float) -> RunOutcome:
    """Simulate one run of an elastic job.

    Args:
        job: The job.
        market: The spot market. Its seed determines the times of the interruptions.
        limits: The limits on the size and on the changes of the membership, as numbers of hosts.
        limit_s: The simulated time after which the run is aborted, in seconds.

    Raises:
        ConfigurationError: SimPy is not installed.
    """
    try:
        import simpy
    except ImportError as error:
        raise ConfigurationError("simulate() of an elastic job needs SimPy: `fleetfit install simulation`.") from error
    return _ElasticRun(simpy.Environment(), job, market, limits).run(limit_s)


class _ElasticRun:
    def __init__(self, env: Any, job: SimulatedJob, market: SpotMarket, limits: Limits) -> None:
        self._env, self._job, self._market, self._limits = env, job, market, limits
        self._roster = Roster(job.hosts, 1)
        self._state = State.GATHERING
        self._offered: tuple[str, ...] = ()
        self._grown_at: float | None = None
        self._stretch: Stretch | None = None  # None while nobody trains
        self._left = job.records
        self._began: dict[str, float] = dict.fromkeys(job.hosts, 0.0)
        # A host that replaces an interrupted host has a new name. The market interrupts the new host under the name of
        # the interrupted host. Here, this name is called the place of both hosts.
        self._coming = {name: spot_interruptions(market, job, [name]) for name in job.hosts}
        self._meetings = 0  # number of the last planned change of the members; earlier planned changes are void
        self._met = 0
        self._stopped_at = 0.0
        self._outcome = RunOutcome()
        self._done, self._given_up = env.event(), env.event()
        self._most_interruptions = _HOPELESS + _HOPELESS_FOR_A_HOST * job.most

    def run(self, limit_s: float) -> RunOutcome:
        for name in self._job.hosts:
            self._env.process(self._live(name, name))
        self._env.run(until=self._env.any_of([self._done, self._given_up, self._env.timeout(limit_s)]))
        outcome, now = self._outcome, self._env.now
        if self._stretch is None:
            outcome.idle_s += now - self._stopped_at
        for name in self._roster.running:
            self._bill(name, now)
        outcome.seconds = now
        outcome.completed = self._done.triggered
        return outcome

    # --- hosts ---

    def _live(self, name: str, place: str) -> Steps:
        """Simulate the start of a host and the imports of its workers.

        Args:
            name: The host's name.
            place: The name under which the market interrupts the host. A host that replaces an interrupted host has a
                new ``name``, but the ``place`` of the interrupted host.
        """
        host, timings = self._roster.hosts[name], self._job.timings
        self._env.process(self._threaten(name, place))
        yield self._env.timeout(timings.start_s)
        if host.state is HostState.GONE:
            return
        if host.state is HostState.STARTING:
            host.state = HostState.READY
        host.up = True
        workers = [self._roster.new_worker(host, slot) for slot in range(host.slots)]
        yield self._env.timeout(timings.import_s)
        for worker in workers:
            if worker.state is WorkerState.PREPARING:
                worker.state = WorkerState.READY
        self._decide()

    def _next_interruption(self, place: str) -> Interruption | None:
        """Return the next interruption of the host at a place, or None if no interruption follows.

        Interruptions in the past, while no host was at the place, are skipped.
        """
        now = self._env.now
        return next((item for item in self._coming[place] if item.host == place and item.at_s >= now), None)

    def _threaten(self, name: str, place: str) -> Steps:
        host = self._roster.hosts[name]
        item = self._next_interruption(place)
        if item is None:
            return
        yield self._env.timeout(item.at_s - self._env.now)
        if host.state in (HostState.GONE, HostState.LEAVING):
            return
        self._outcome.interruptions += 1
        if self._outcome.interruptions > self._most_interruptions:
            if not self._given_up.triggered:
                self._given_up.succeed()
            return
        host.state, host.noticed = HostState.LEAVING, True
        self._roster.leaving.append(name)
        self._decide()
        yield self._env.timeout(self._market.notice_s)
        if host.state is not HostState.GONE:
            self._take(host)
        if item.return_after_s is not None:
            yield self._env.timeout(item.return_after_s)
            if len(self._roster.staying) < self._job.most:
                new = f"algo-{len(self._roster.hosts) + 1}"
                self._roster.add(ElasticHost(new))
                self._began[new] = self._env.now
                self._env.process(self._live(new, place))

    def _gone(self, host: ElasticHost) -> None:
        host.state = HostState.GONE
        for worker in host.workers.values():
            worker.state = WorkerState.ENDED
        if host.name in self._roster.leaving:
            self._roster.leaving.remove(host.name)
        self._bill(host.name, self._env.now)

    def _bill(self, name: str, until: float) -> None:
        kept = name in self._job.kept
        self._outcome.bill(until - self._began[name], spot=not kept, on_demand=kept)

    def _take(self, host: ElasticHost) -> None:
        """Remove a host at the end of its interruption notice.

        If its workers are still training, simulate their loss.
        """
        members = set(self._roster.members)
        trained = any(worker.name in members for worker in host.workers.values())
        self._gone(host)
        if not trained or not self._state.has_met:
            self._decide()
            return
        self._stop(keeps=False)
        self._turn(TrainingEvent.LOSS)
        self._meetings += 1
        self._env.process(self._settle(self._meetings))

    def _settle(self, number: int) -> Steps:
        """Continue with the remaining workers after a loss.

        If too few workers remain, wait for more hosts.

        Args:
            number: The number of this change of the membership. If a newer change has been planned since, do nothing.
        """
        yield self._env.timeout(self._job.timings.loss_s)
        if number != self._meetings:
            return
        left = self._alive(self._roster.members)
        if not left:  # start again like a new job, with the hosts that exist now
            self._state, self._offered = State.GATHERING, ()
            self._roster.members = ()
        elif len(left) >= self._limits.least:
            self._offered = left
            self._train(left)
        else:
            self._turn(TrainingEvent.SETTLED)
        self._decide()

    # --- the membership ---

    def _alive(self, names: tuple[str, ...]) -> tuple[str, ...]:
        workers, ended = self._roster.workers, WorkerState.ENDED
        return tuple([name for name in names if workers[name].state is not ended])

    def _turn(self, turn: TrainingEvent) -> None:
        self._state = TRANSITIONS.following(self._state, turn)

    def _decide(self) -> None:
        if self._done.triggered:
            return
        now = self._env.now
        begins = self._state is State.GATHERING and self._met > 0
        found = decide(
            self._state, self._roster, self._limits, self._offered, None,
            now=now, grown_at=self._grown_at, all_there=not begins,
        )  # fmt: skip
        if found.again_at is not None:
            self._env.process(self._decide_at(max(found.again_at, now + _AGAIN_S)))
        if found.shortage and self._state is not State.SHORT and self._state.has_met:
            self._stop(keeps=True)
            self._turn(TrainingEvent.SHORTAGE)
        if found.workers is not None and found.workers:
            self._offered = found.workers
            if not self._state.has_begun:
                self._turn(TrainingEvent.BEGIN)
            if len(found.workers) >= self._limits.least:
                self._meetings += 1
                self._env.process(self._meet(found.workers, self._meetings))

    def _decide_at(self, moment: float) -> Steps:
        yield self._env.timeout(moment - self._env.now)
        self._decide()

    def _meet(self, workers: tuple[str, ...], number: int) -> Steps:
        """Stop the workers when they next check for changes, and continue with the new members.

        No completed work is lost.

        Args:
            workers: The names of the new members.
            number: The number of this change of the membership. If a newer change has been planned since, do nothing.
        """
        timings, now = self._job.timings, self._env.now
        if self._stretch is not None:
            look_s = timings.look_s
            yield self._env.timeout(self._stretch.next_commit(now) - now if look_s is None else look_s)
            if number != self._meetings:
                return
            self._stop(keeps=True)
        yield self._env.timeout(timings.resize_s if self._met else timings.first_s)
        if number != self._meetings:
            return
        there = self._alive(workers)
        if len(there) < self._limits.least:
            self._decide()
            return
        if len(there) > len(self._roster.members) > 0:
            self._grown_at = self._env.now
        self._train(there)
        self._decide()

    def _train(self, workers: tuple[str, ...]) -> None:
        roster = self._roster
        roster.take_places(workers)
        for name in workers:
            roster.workers[name].state = WorkerState.PLACED
        if roster.leaving:
            hosts = {roster.workers[name].host for name in workers}
            for name in [name for name in roster.leaving if name not in hosts]:
                self._gone(roster.hosts[name])
        self._turn(TrainingEvent.MEETING)
        self._outcome.resizes += self._met > 0
        self._met += 1
        now = self._env.now
        self._outcome.idle_s += now - self._stopped_at
        job = self._job
        self._stretch = Stretch(now, job.rate(len(workers)), job.every_s, job.timings.commit_s)
        self._env.process(self._finish(self._stretch))

    def _stop(self, *, keeps: bool) -> None:
        """Stop the training, and count the remaining work.

        Args:
            keeps: Whether the workers keep their state. With False, the work since the last commit is lost.
        """
        stretch, self._stretch = self._stretch, None
        now = self._env.now
        if stretch is None:
            return
        self._stopped_at = now
        trained_s = stretch.trained_s(now)
        kept_s = trained_s if keeps else stretch.kept_s(now)
        self._left -= kept_s * stretch.rate
        self._outcome.lost_s += trained_s - kept_s
        self._outcome.commit_s += now - stretch.since - trained_s

    def _finish(self, stretch: Stretch) -> Steps:
        end = stretch.ends_at(max(0.0, self._left))
        yield self._env.timeout(end - self._env.now)
        if self._stretch is stretch and not self._done.triggered:
            self._outcome.commit_s += end - stretch.since - self._left / stretch.rate
            self._done.succeed()
