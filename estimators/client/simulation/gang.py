"""Simulate one run of a job that restarts all its hosts from the last checkpoint after an interruption (a gang).

The real supervisor's function decides whether another attempt follows.
"""

from __future__ import annotations

import math

from estimators.client.simulation.model import RunOutcome, SimulatedJob, Stretch, spot_interruptions
from estimators.job.failure_policy import Again, EndedBy, Ending, FailurePolicy, PresentHosts, decide
from estimators.job.spot_market import Interruption, SpotMarket


def run(job: SimulatedJob, market: SpotMarket, policy: FailurePolicy, limit_s: float) -> RunOutcome:
    """Simulate one run of a job that restarts all its hosts after an interruption.

    Args:
        job: The job.
        market: The spot market. Its seed determines the times of the interruptions.
        policy: The failure policy, which decides whether the job is restarted after an attempt.
        limit_s: The simulated time after which the run is aborted, in seconds.
    """
    outcome = RunOutcome()
    timings, left = job.timings, job.records
    fleet = PresentHosts(hosts=job.hosts)
    endings: list[Ending] = []
    coming = spot_interruptions(market, job, job.hosts)
    ahead = next(coming, None)
    now, ready_at = 0.0, timings.start_s + timings.import_s + (timings.rendezvous_s or 0.0)
    while True:
        begin = fleet.enough_at(job.least, now)
        # While the job waits for hosts, hosts that have already started may be interrupted.
        while ahead is not None and ahead.at_s < begin <= limit_s:
            if ahead.host in fleet.present(ahead.at_s):
                outcome.interruptions += 1
                fleet = fleet.without(ahead.host, until=_back_at(ahead, market))
                begin = fleet.enough_at(job.least, now)
            ahead = next(coming, None)
        if begin + ready_at > limit_s:
            end = max(now, limit_s)
            outcome.idle_s += end - now
            now = end
            break
        hosts = fleet.present(begin)
        start = begin + ready_at
        outcome.idle_s += start - now
        stretch = Stretch(start, job.rate(len(hosts)), job.every_s, timings.checkpoint_s)
        # Skip interruptions of hosts that the attempt does not use. If a notice comes before the first step, the
        # attempt ends at the first step.
        while ahead is not None and ahead.host not in hosts:
            ahead = next(coming, None)
        end = stretch.ends_at(left)
        if ahead is None or ahead.at_s >= end:
            _bill(outcome, job, hosts, end - begin)
            outcome.commit_s += end - start - left / stretch.rate
            outcome.completed, now = end <= limit_s, end
            break
        at, host = max(ahead.at_s, start), ahead.host
        outcome.interruptions += 1
        outcome.resizes += 1
        # After SIGTERM, the script saves a checkpoint if the notice is long enough.
        saves = timings.checkpoint_s <= market.notice_s
        trained_s = stretch.trained_s(at)
        kept_s = trained_s if saves else stretch.kept_s(at)
        left -= kept_s * stretch.rate
        outcome.lost_s += trained_s - kept_s
        outcome.commit_s += at - start - trained_s
        now = at + min(market.notice_s, timings.checkpoint_s)
        outcome.idle_s += now - at
        _bill(outcome, job, hosts, now - begin)
        fleet = fleet.without(host, until=_back_at(ahead, market))
        ahead = next(coming, None)
        endings.append(
            Ending(
                attempt=len(endings), kind=EndedBy.PREEMPTION, hosts=hosts, taken=(host,), progressed=kept_s > 0
            )
        )  # fmt: skip
        follows = decide(policy, endings)
        if not isinstance(follows, Again):
            break
        now += follows.pause_s
        ready_at = timings.restart_s
    outcome.seconds = now
    return outcome


def _back_at(item: Interruption, market: SpotMarket) -> float:
    return math.inf if item.return_after_s is None else item.at_s + market.notice_s + item.return_after_s


def _bill(outcome: RunOutcome, job: SimulatedJob, hosts: tuple[str, ...], seconds: float) -> None:
    kept = sum(host in job.kept for host in hosts)
    outcome.bill(seconds, spot=len(hosts) - kept, on_demand=kept)
