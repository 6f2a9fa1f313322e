"""Run a tuning job on the user's hosts: start the trials' jobs, and report their values to the Optuna study. The code
runs in the tuning job's process (:mod:`estimators.tuning.process`).

If the process is killed, a new process can repeat every step. A trial is written into the study's journal with its
hyperparameters before its job is started. The name of the job is computed from the trial's number. Therefore the new
process finds every trial, including trials that have ended meanwhile.
"""

from __future__ import annotations

import math
import os
import random
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optuna.trial import Trial, TrialState

from container.contract.names import nearest
from estimators.client import launch
from estimators.job.errors import FleetfitError, JobExistsError
from estimators.job.request import TrainingJobSpec
from estimators.records import status as statuses
from estimators.records.private_files import is_full
from estimators.records.record import JobRecord, jobs_folder
from estimators.tuning import population, ranges, search, trials
from estimators.tuning.config import Goal, TuningJobCompletionCriteriaConfig
from estimators.tuning.fleet import Bounds
from estimators.tuning.record import COMPLETED, FAILED, PRUNED, RUNNING, STOPPED, TuningRecord, best_row
from estimators.tuning.sharing import Sharing

#: The interval at which the trials' records are polled, in seconds.
_PACE = 0.03
#: The reason for stopping trials at the deadline of their fleet.
_DEADLINE = "the deadline was reached"
#: The tuning job fails if this many trials have failed and no trial has reported a value yet.
_FIRST_FAILURES = 5
#: The trials have converged if this many trials in a row have not improved the best value by more than the fraction
#: ``_CONVERGED_SHARE``.
_CONVERGED_AFTER = 10
_CONVERGED_SHARE = 1e-3


#: The pause between two tries to start a trial's job while the disk is full, in seconds.
_AGAIN_S = 2.0


class Running:
    """A trial whose job runs."""

    def __init__(self, trial: Trial, record: JobRecord, objective: str, row: dict[str, Any]) -> None:
        self.trial = trial
        self.record = record
        self.row = row
        self.follower = trials.Follower(record, objective)
        self.stamp: object = None
        #: The reason why the trial is being stopped, or None.
        self.stopping: str | None = None
        self.revived = False
        #: If the objective is a goal, the seconds from the start of the training until the trial reached the goal. None
        #: before the goal is reached.
        self.reached: float | None = None


class Tuning:
    """One tuning job on the user's hosts. The class runs the loop that starts and follows the trials.

    Args:
        record: The tuning job's record. This process holds the record's lock.
    """

    def __init__(self, record: TuningRecord) -> None:
        self.record = record
        self.spec = record.spec
        self.goal = self.spec.goal
        self.status = record.status()
        self.created = float(self.status["CreationTime"])
        self.study = search.open_study(record.journal, self.spec)
        self.completion = TuningJobCompletionCriteriaConfig.from_job_desc(self.spec.completion)
        self.rows: dict[int, dict[str, Any]] = {}
        self.running: dict[int, Running] = {}
        #: The trials in the journal whose jobs could not be started because the disk is full. ``_again_at`` is the time
        #: of the next try.
        self.unstarted: list[tuple[Trial, dict[str, Any], int]] = []
        self._again_at = 0.0
        #: The final status and the reason for the end. None until the end is decided.
        self.ending: tuple[str, str] | None = None
        #: Whether every combination of hyperparameters has a trial.
        self._used_up = False
        self._processes: list[subprocess.Popen[bytes]] = []
        self._sharing = self._share_of_fleet()

    def run(self) -> None:
        """Run the tuning job until it has ended."""
        self._adopt()
        self._warm_start()
        self._decide()
        self._write()
        while True:
            changed = self._look()
            if changed:
                self._decide()
            if self.ending is None and (self._start_again() or self._fill()):
                changed = True
                self._decide()
            if self.ending is None and self._sharing is not None:
                changed = self._share(self._sharing) or changed
            if changed or (self.ending is None and self._told_to_end()):
                self._write()
            if self.ending is not None:
                self._stop_trials(self.ending[1])
                if not self.running:
                    break
            self._processes = [process for process in self._processes if process.poll() is None]
            time.sleep(_PACE)
        self._finish()

    # --- trials ---

    def _adopt(self) -> None:
        """Restore the trials that an earlier process of this tuning job has started."""
        kept = {row["number"]: row for row in self.record.trials()}
        for frozen in self.study.get_trials(deepcopy=False):
            if frozen.state == TrialState.WAITING or {"parent", "repeated"} & frozen.user_attrs.keys():
                continue
            values: dict[str, str] = {}
            if frozen.state == TrialState.RUNNING:
                trial = Trial(self.study, frozen._trial_id)
                values = search.suggest(trial, self.spec.parameter_ranges)
            row = kept.get(frozen.number) or self._row(frozen.number, values, frozen.user_attrs)
            self.rows[frozen.number] = row
            if frozen.state == TrialState.RUNNING:
                row["state"] = RUNNING
                self._start(trial, row, reported=len(frozen.intermediate_values))
            elif row["state"] == RUNNING:  # the study has the outcome, but the record's rows do not
                row.update(frozen.user_attrs.get("told", {"state": FAILED, "reason": "its outcome is not on record"}))

    def _enqueue_member(self) -> bool:
        """Enqueue the next member of population-based training.

        Return False if the member's generation cannot begin yet. Otherwise, return True. Members of the first
        generation are not enqueued, because the sampler chooses their hyperparameters.
        """
        place, size = len(self.rows), self.spec.members.size
        generation, member = divmod(place, size)
        if any(trial.state == TrialState.WAITING for trial in self.study.get_trials(deepcopy=False)):
            return True
        if generation == 0:
            return True
        rows = [self.rows[number] for number in sorted(self.rows)]
        before = rows[(generation - 1) * size : generation * size]
        if any(row["state"] == RUNNING for row in before):
            return False
        sign = 1.0 if self.spec.maximize else -1.0
        values = [sign * row["value"] if row["value"] is not None else None for row in before]
        draw = random.Random(f"{self.spec.random_seed}:{self.created}:{place}")
        config = self.spec.members
        found = population.successor(values, member, config, draw)
        frozen = self.study.trials[before[found.origin]["number"]]
        parameters = dict(frozen.params)
        if found.changed:
            parameters = population.changed(parameters, self.spec.parameter_ranges, config, draw)
        self.study.enqueue_trial(parameters, user_attrs={"origin": before[found.origin]["job"]})
        return True

    def _row(self, number: int, values: dict[str, str], attributes: Mapping[str, Any]) -> dict[str, Any]:
        if self.spec.strategy == "PBT":
            config = self.spec.members
            place = sum(other < number for other in self.rows)
            values = {**values, config.resource: str((place // config.size + 1) * config.interval)}
        return {
            "number": number,
            "job": trials.job_name(self.spec.name, self.created, number),
            "origin": attributes.get("origin"),
            "values": values,
            "state": RUNNING,
            "value": None,
            "reason": None,
            "created": time.time(),
            "ended": None,
            "last": None,
            "reports": 0,
        }

    def _fill(self) -> bool:
        changed = False
        while self._has_room() and len(self.rows) < self.spec.limit:
            if self.ending is not None or self.unstarted:
                break
            if self.spec.strategy == "Grid":
                search.enqueue_grid_point(self.study, self.spec)
            if self.spec.strategy == "PBT" and not self._enqueue_member():
                break
            asked = self._ask()
            if asked is None:
                self._used_up = True
                self._decide()
                break
            trial, values = asked
            row = self._row(trial.number, values, trial.user_attrs)
            self.rows[trial.number] = row
            self._start(trial, row)
            changed = True
            self._decide()
        return changed

    def _ask(self) -> tuple[Trial, dict[str, str]] | None:
        """Return the next trial and its hyperparameters. Return None if all combinations have been tried.

        Unless the spec allows ``repeats`` or the strategy is PBT, no other trial has the same hyperparameters.
        """
        parameter_ranges = self.spec.parameter_ranges
        # with PBT, a member may continue with unchanged hyperparameters
        if not self.spec.repeats and self.spec.strategy != "PBT":
            names = [name for name, _, _ in ranges.items(parameter_ranges)]
            taken = {tuple(row["values"].get(name, "") for name in names) for row in self.rows.values()}
            size = ranges.size(parameter_ranges)
            if size is not None and len(taken) >= size:
                return None
            trial = self.study.ask()
            values = search.suggest(trial, parameter_ranges)
            if size is None or tuple(values.values()) not in taken:
                return trial, values
            # Samplers repeat points when few points of the search space are left. A repeated trial is closed and does
            # not count.
            trial.set_user_attr("repeated", True)
            self.study.tell(trial, state=TrialState.FAIL)
            seed = self.spec.random_seed
            draw = random.Random(f"{seed}:{len(taken)}" if seed is not None else None)
            search.enqueue_new_point(self.study, parameter_ranges, taken, draw)
        trial = self.study.ask()
        return trial, search.suggest(trial, parameter_ranges)

    def _has_room(self) -> bool:
        if len(self.running) >= self.spec.parallel:
            return False
        return self._sharing is None or self._sharing.has_room(self.running, self._last_values())

    def _start(self, trial: Trial, row: dict[str, Any], reported: int = 0) -> None:
        """Start a trial's job, and follow it. If an earlier process has started the job, only follow it. If the disk is
        full, keep the trial for :meth:`_start_again`.

        Args:
            trial: The trial.
            row: The trial's row in the record.
            reported: The number of values that an earlier process has reported to the study.
        """
        home = self.record.home
        record = JobRecord(jobs_folder(home) / row["job"])
        if not record.path.is_dir():
            try:
                started = trials.start(self.record.template, row["job"], row["values"], home, row.get("origin"))
                self._processes.append(started)
            except JobExistsError:
                pass
            except FleetfitError as error:
                if is_full(error):  # the disk is full, so that the next trials could not be started either
                    self.unstarted.append((trial, row, reported))
                    self._again_at = time.monotonic() + _AGAIN_S
                    self.status["Fleetfit"]["waiting"] = str(error)
                    return
                self._tell(trial, row, FAILED, None, f"it could not be started: {error}")
                return
        running = self.running[trial.number] = Running(trial, record, self.spec.metric, row)
        self._follow(running, reported)

    def _start_again(self) -> bool:
        """Retry the start of trials that could not be started because of a full disk.

        Returns:
            Whether a trial has been started or has failed.
        """
        if not self.unstarted or time.monotonic() < self._again_at:
            return False
        waiting, self.unstarted = self.unstarted, []
        self.status["Fleetfit"].pop("waiting", None)
        for trial, row, reported in waiting:
            if self.unstarted:
                self.unstarted.append((trial, row, reported))
            else:
                self._start(trial, row, reported)
        return len(self.unstarted) < len(waiting)

    def _look(self) -> bool:
        """Handle new values of the running trials, and the ends of their jobs.

        Returns:
            Whether anything has changed.
        """
        changed = False
        for running in list(self.running.values()):
            changed = self._follow(running) or changed
            stamp = _stamp(running.record.status_file)
            if stamp != running.stamp or not running.record.is_supervised():
                running.stamp = stamp
                stored = running.record.read_status()
                if statuses.is_terminal(stored):
                    self._follow(running)
                    changed = self._ended(running, stored) or changed
        return changed

    def _follow(self, running: Running, reported: int = 0) -> bool:
        """Report a trial's new values to the study.

        Args:
            running: The trial.
            reported: The number of values that an earlier process has reported. These values are not reported again.

        Returns:
            Whether the trial has new values.
        """
        begin = len(running.follower.values)
        found = running.follower.poll()
        for step, value in enumerate(found, start=begin + 1):
            if step <= reported and self.goal is None:
                continue
            running.row.update(last=value if math.isfinite(value) else None, reports=step)
            if self.goal is not None:
                self._approach(running, self.goal, step, value)
                continue
            running.trial.report(value, step)
            if self.spec.prunes and running.stopping is None and running.trial.should_prune():
                running.stopping = f"pruned after {step} values of {self.spec.objective}"
                trials.ask_to_stop(running.record, f"tuning job {self.spec.name} has pruned this trial")
        return bool(found)

    def _approach(self, running: Running, goal: Goal, step: int, value: float) -> None:
        """Check whether a value reaches the goal. If so, record the time, and request that the trial's job stops."""
        if running.reached is not None or not goal.reached(value):
            return
        status = running.record.stored_status() or {}
        began = float(status.get("TrainingStartTime") or running.row["created"])
        running.reached = max(0.0, running.follower.times[step - 1] - began)
        running.stopping = running.stopping or "the target was reached"
        trials.ask_to_stop(running.record, f"the job has reached the target of tuning job {self.spec.name}")

    def _ended(self, running: Running, status: dict[str, Any]) -> bool:
        """Handle the end of a trial's job.

        Returns:
            True if the trial is over. False if its job was resumed.
        """
        value = trials.final_value(status, self.spec.metric)
        if value is None and running.follower.values:
            value = running.follower.values[-1]
        if self.goal is not None and running.reached is not None:
            self._close(running, status, COMPLETED, running.reached, None)
            return True
        state = status["TrainingJobStatus"]
        if state == "Failed" and self._revive(running):
            return False
        self._close(running, status, *self._outcome(running, status, value))
        return True

    def _close(
        self, running: Running, status: dict[str, Any], state: str, value: float | None, reason: str | None
    ) -> None:
        row = running.row
        del self.running[row["number"]]
        row["status"] = status["TrainingJobStatus"]
        row["started"] = status.get("TrainingStartTime")
        row["ended"] = float(status.get("TrainingEndTime") or status.get("LastModifiedTime") or time.time())
        self._tell(running.trial, row, state, value, reason)

    def _outcome(
        self, running: Running, status: dict[str, Any], value: float | None
    ) -> tuple[str, float | None, str | None]:
        """Determine how a trial has ended, from the status of its job.

        Returns:
            The trial's state. The trial's value, or None. The reason why the trial failed or was stopped, or None.
        """
        state, goal = status["TrainingJobStatus"], self.goal
        kept = value if goal is None else None  # for a goal, the objective's value is a time, not the metric's value
        if state == "Failed":
            return FAILED, kept, _reason(status)
        if state == "Stopped" and running.stopping == _DEADLINE and kept is not None and math.isfinite(kept):
            return COMPLETED, kept, _DEADLINE
        if state == "Stopped" and running.stopping is not None and (value is None or math.isfinite(value)):
            pruned = running.stopping.startswith("pruned") and kept is not None
            return (PRUNED if pruned else STOPPED), kept, running.stopping
        if state == "Stopped" and (value is None or goal is not None or status.get("SecondaryStatus") == "Stopped"):
            return STOPPED, kept, "it was stopped"
        if value is None:
            return FAILED, None, self._never_reported(running, status)
        if goal is not None:
            wanted = self.spec.objective.removeprefix("time_to:")
            return FAILED, None, f"it never reached {wanted}. The last value was {value:g}"
        if not math.isfinite(value):
            return FAILED, None, f"{self.spec.metric} is {value}, which is not a finite number."
        return COMPLETED, value, None

    def _never_reported(self, running: Running, status: dict[str, Any]) -> str:
        others = sorted(running.follower.others)
        guess = nearest(self.spec.metric, others)
        text = f"it never reported {self.spec.metric!r}"
        if guess is not None:
            return f"{text}. Did you mean {guess!r}?"
        told = f"but reported {', '.join(others[:8])}" if others else "nor any other metric"
        about = f"metric {self.spec.metric!r}: "
        if (found := next((one for one in statuses.noticed(status) if one.startswith(about)), None)) is not None:
            return f"{text}, {told}: {found.removeprefix(about)}"
        remedy = "Call cluster.report() in the script, or find the metric in the logs with metric_definitions"
        return f"{text}, {told}. {remedy} (fleetfit tune: -m)."

    def _revive(self, running: Running) -> bool:
        """Resume a job whose supervisor was lost, for example by a restart of the machine. A job is resumed only once.

        The supervisor is the process that runs the job.

        Returns:
            Whether the job was resumed.
        """
        if (
            running.revived
            or running.stopping is not None
            or statuses.is_terminal(running.record.stored_status() or {})
        ):
            return False
        running.revived = True
        try:
            launch.resume(JobRecord(running.record.path), attached=False)
        except FleetfitError:
            return False
        return True

    def _tell(self, trial: Trial, row: dict[str, Any], state: str, value: float | None, reason: str | None) -> None:
        row.update(state=state, value=value if value is not None and math.isfinite(value) else None, reason=reason)
        row["ended"] = row["ended"] or time.time()
        told = {name: row.get(name) for name in ("state", "value", "reason", "values", "ended", "started", "status")}
        trial.set_user_attr("told", told)
        if state == COMPLETED:
            self.study.tell(trial, value)
        elif state == PRUNED:
            self.study.tell(trial, state=TrialState.PRUNED)
        else:
            self.study.tell(trial, state=TrialState.FAIL)

    def _stop_trials(self, reason: str) -> None:
        for trial, row, _ in self.unstarted:
            self._tell(trial, row, STOPPED, None, reason or "the tuning job had ended")
        self.unstarted = []
        for running in self.running.values():
            if running.stopping is None:
                running.stopping = reason
                trials.ask_to_stop(running.record, reason)

    # --- shared fleet ---

    def _share_of_fleet(self) -> Sharing | None:
        config, lasts = self.spec.fleet, self.spec.max_runtime_s
        if config is None or lasts is None:
            return None
        template = TrainingJobSpec.from_request(self.record.template.read_request())
        least = template.instance_count
        most = getattr(template.strategy, "max_hosts", None) or least
        return Sharing(config, Bounds(least=least, most=most), self.created, lasts)

    def _last_values(self) -> dict[int, float | None]:
        sign = 1.0 if self.spec.maximize else -1.0
        lasts = {number: running.row["last"] for number, running in self.running.items()}
        return {number: sign * last if last is not None else None for number, last in lasts.items()}

    def _share(self, sharing: Sharing) -> bool:
        """Move hosts of the fleet to better trials. Request that the jobs of trials that lose all their hosts stop.

        Returns:
            Whether the number of a trial's hosts has changed.
        """
        stopped = sharing.share(self.running, self._last_values())
        if sharing.trouble != self.status["Fleetfit"].get("not_shared"):
            self.status["Fleetfit"]["not_shared"] = sharing.trouble
            self._write_status()
        for number in stopped:
            running = self.running[number]
            if running.stopping is None:
                running.stopping = "pruned: its hosts went to better trials"
                trials.ask_to_stop(running.record, "its hosts go to better trials")
        before = {number: running.row.get("hosts") for number, running in self.running.items()}
        for number, running in self.running.items():
            running.row["hosts"] = sharing.hosts.get(number)
        return any(running.row["hosts"] != before[number] for number, running in self.running.items())

    # --- the end ---

    def _told_to_end(self) -> bool:
        """Check for a stop request and for the time limit. If the tuning job must end, set ``ending`` to the final
        status and the reason.

        Returns:
            Whether the tuning job must end.
        """
        if self.record.stop_file.exists():
            self.ending = ("Stopped", "the tuning job was stopped")
        elif self.spec.max_runtime_s is not None and time.time() - self.created > self.spec.max_runtime_s:
            if self.spec.fleet is not None:
                self.ending = ("Completed", _DEADLINE)
                return True
            self.ending = ("Stopped", f"max_runtime_in_seconds={self.spec.max_runtime_s} was reached")
        return self.ending is not None

    def _decide(self) -> None:
        """Decide whether the tuning job ends because of its trials, a stop request or the time limit. If so, set
        ``ending`` to the final status and the reason.
        """
        if self.ending is not None or self._told_to_end():
            return
        rows = sorted(self.rows.values(), key=lambda row: row["ended"] or math.inf)
        over = [row for row in rows if row["state"] != RUNNING]
        good = [row for row in over if row["state"] == COMPLETED]
        failed = [row for row in over if row["state"] == FAILED]
        useful = [row for row in self.rows.values() if row["value"] is not None or row["last"] is not None]
        last = f" The last failed trial was {failed[-1]['job']}: {failed[-1]['reason']}" if failed else ""
        never = next((row for row in failed if str(row["reason"]).startswith("it never reported")), None)
        if never is not None and not useful:
            self.ending = ("Failed", f"training job {never['job']}: {never['reason']}")
        elif self.spec.max_failures is not None and len(failed) >= self.spec.max_failures:
            self.ending = ("Failed", f"{len(failed)} trials failed (max_failures={self.spec.max_failures}).{last}")
        elif not useful and len(failed) >= min(_FIRST_FAILURES, self.spec.limit):
            self.ending = ("Failed", f"the first {len(failed)} trials all failed.{last}")
        elif self._good_enough(good):
            pass
        elif self._used_up and len(over) == len(self.rows):
            told = f"all {len(over)} points of the search space were tried"
            self.ending = ("Completed", told) if good else ("Failed", f"{told}, and no trial completed.{last}")
        elif len(over) >= self.spec.limit:
            self.ending = ("Completed", "") if good else ("Failed", f"no trial completed.{last}")

    def _good_enough(self, good: list[dict[str, Any]]) -> bool:
        target = self.completion.target_objective_metric_value
        patience = self.completion.max_number_of_training_jobs_not_improving
        best: float | None = None
        since = since_much = 0
        for row in good:
            value = row["value"]
            if best is None or self.spec.better(value, best):
                much = best is None or abs(value - best) > _CONVERGED_SHARE * max(abs(best), 1e-12)
                best, since, since_much = value, 0, 0 if much else since_much + 1
            else:
                since, since_much = since + 1, since_much + 1
        if best is None:
            return False
        if target is not None and (best == target or self.spec.better(best, target)):
            self.ending = ("Completed", f"the target {target:g} was reached")
        elif patience is not None and since >= patience:
            self.ending = ("Completed", f"{since} trials in a row did not improve the best value")
        elif self.completion.complete_on_convergence and since_much >= max(_CONVERGED_AFTER, 2 * len(self.spec.ranges)):
            self.status.setdefault("TuningJobCompletionDetails", {})["ConvergenceDetectedTime"] = time.time()
            self.ending = ("Completed", "the trials have converged")
        if patience is not None:
            details = self.status.setdefault("TuningJobCompletionDetails", {})
            details["NumberOfTrainingJobsObjectiveNotImproving"] = since
        return self.ending is not None

    # --- status and rows for readers ---

    def _write(self) -> None:
        rows = [self.rows[number] for number in sorted(self.rows)]
        self.record.write("trials", {"trials": rows})
        stopping = self.ending is not None and self.ending[0] == "Stopped"
        self.status.update(HyperParameterTuningJobStatus="Stopping" if stopping else "InProgress", **self._counters())
        self._write_status()

    def _counters(self) -> dict[str, Any]:
        states = [row["state"] for row in self.rows.values()]
        scored = [row for row in self.rows.values() if row["state"] != RUNNING and row["value"] is not None]
        times = [row["ended"] - row["created"] for row in self.rows.values() if row["ended"] is not None]
        best = best_row(self.rows.values(), maximize=self.spec.maximize)
        return {
            "TrainingJobStatusCounters": {
                "Completed": states.count(COMPLETED)
                + sum(row["state"] == FAILED and row.get("status") == "Completed" for row in self.rows.values()),
                "InProgress": states.count(RUNNING),
                "RetryableError": 0,
                "NonRetryableError": sum(
                    row["state"] == FAILED and row.get("status") != "Completed" for row in self.rows.values()
                ),
                "Stopped": states.count(PRUNED) + states.count(STOPPED),
            },
            "ObjectiveStatusCounters": {
                "Succeeded": len(scored),
                "Pending": states.count(RUNNING),
                "Failed": len(states) - states.count(RUNNING) - len(scored),
            },
            "ConsumedResources": {"RuntimeInSeconds": int(sum(times))},
            "Fleetfit": {
                **self.status.get("Fleetfit", {}),
                "pid": os.getpid(),
                "best": best["number"] if best is not None else None,
            },
        }

    def _finish(self) -> None:
        assert self.ending is not None
        state, reason = self.ending
        if state == "Completed" and not any(row["state"] == COMPLETED for row in self.rows.values()):
            state, reason = "Failed", f"{reason}, and no trial had reported {self.spec.metric!r} by then"
        for name in ("waiting", "not_shared"):
            self.status["Fleetfit"].pop(name, None)
        self.status.update(
            HyperParameterTuningJobStatus=state, HyperParameterTuningEndTime=time.time(), **self._counters()
        )
        if state == "Failed":
            self.status["FailureReason"] = reason[:1024]
        self.status["Fleetfit"]["ended_because"] = reason
        self.record.write("trials", {"trials": [self.rows[number] for number in sorted(self.rows)]})
        self._write_status()

    def _write_status(self) -> None:
        self.status["LastModifiedTime"] = time.time()
        self.record.write("status", self.status)

    # --- warm start ---

    def _warm_start(self) -> None:
        """Add the results of earlier tuning jobs to the study. Do nothing if they have been added before.

        Trials whose hyperparameters are outside of this tuning job's ranges are omitted.
        """
        if not self.spec.warm_start or self.study.user_attrs.get("warm"):
            return
        import optuna

        taken = 0
        trial_like = optuna.study.create_study()  # a temporary study that provides distributions for these trials
        for parent in self.spec.warm_start["ParentHyperParameterTuningJobs"]:
            record = TuningRecord.open(parent["HyperParameterTuningJobName"], self.record.home)
            for row in record.trials():
                parameters = search.as_parameters(row["values"], self.spec.parameter_ranges)
                if row["state"] != COMPLETED or parameters is None:
                    continue
                trial_like.enqueue_trial(parameters)
                like = trial_like.ask()
                search.suggest(like, self.spec.parameter_ranges)
                self.study.add_trial(
                    optuna.create_trial(
                        params=like.params, distributions=like.distributions, value=row["value"],
                        user_attrs={"parent": record.name},
                    )
                )  # fmt: skip
                taken += 1
        self.study.set_user_attr("warm", taken)


def _reason(status: dict[str, Any]) -> str:
    """Return the reason why a job failed, in one line.

    The line consists of the failure's message and the last line of the traceback or of the log.
    """
    failure = statuses.failure_of(status)
    if failure is None:
        return "it failed"
    said = (failure.traceback or failure.log_tail or "").strip().splitlines()
    last = said[-1].strip() if said else ""
    more = f": {last}" if last and last not in failure.message else ""
    return f"{failure.message.rstrip('.')}{more}"[:500]


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_ino
