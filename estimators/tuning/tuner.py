"""Provide ``HyperparameterTuner``, the class with which users start and follow tuning jobs."""

from __future__ import annotations

import copy
import dataclasses
import re
import sys
import time
from collections.abc import Mapping
from typing import Any

from container.contract import hyperparameters as codec
from container.contract.names import shown, suggests_arguments
from container.contract.strategies import ElasticHorovod
from estimators import backends
from estimators.client import launch
from estimators.client.attaching import find_job, settings_of
from estimators.client.estimator import Estimator, TensorFlow
from estimators.client.prepared_job import Draft
from estimators.client.printing import in_jupyter, write_text
from estimators.client.training_job import TrainingJob
from estimators.client.waiting import told_interrupt
from estimators.job.errors import (
    ConfigurationError,
    JobExistsError,
    JobNotFoundError,
    PreflightWarning,
    UnsupportedError,
    warn,
)
from estimators.job.inputs import Inputs
from estimators.job.naming import base_of_name
from estimators.records.record import jobs_folder
from estimators.tuning import ranges, running, trials
from estimators.tuning.analytics import HyperparameterTuningJobAnalytics, describe
from estimators.tuning.config import (
    PopulationConfig,
    StrategyConfig,
    TuningJobCompletionCriteriaConfig,
    TuningSpec,
    WarmStartConfig,
    WarmStartTypes,
)
from estimators.tuning.display import NotebookDisplay, TrialLines, failure
from estimators.tuning.fleet import SharedFleetConfig
from estimators.tuning.plan import TuningPlan
from estimators.tuning.record import TuningRecord
from estimators.tuning.request import check_managed, request_of

_NAME_ATTEMPTS = 20
#: The default limit of trials in a shared fleet. It is so high that the deadline is reached first.
_ENOUGH_JOBS = 10_000


@suggests_arguments
class HyperparameterTuner:
    """A search for the best hyperparameters. The tuner starts many training jobs of an estimator, and finds the best
    job.

    The names, meanings and defaults of the arguments are those of the SageMaker SDK 2.x, on every backend. Optuna
    chooses the hyperparameters and stops bad trials. For instance types ``ml.*``, SageMaker chooses the hyperparameters
    and stops bad trials.

    Args:
        estimator: The estimator that defines the trials' jobs. Hyperparameters without a range have the estimator's
            values in all trials.
        objective_metric_name: The metric to optimise. The script reports the metric, or ``metric_definitions`` defines
            it.
        hyperparameter_ranges: The ranges by the names of the hyperparameters. A range is a
            :class:`ContinuousParameter`, :class:`IntegerParameter` or :class:`CategoricalParameter`.
        metric_definitions: The definitions of metrics, as for the estimator. They replace the estimator's definitions.
        strategy: ``Bayesian``, ``Random``, ``Hyperband``, ``Grid``, ``ASHA`` or ``PBT``. SageMaker does not have
            ``ASHA`` and ``PBT``.
        objective_type: ``Maximize`` or ``Minimize``.
        max_jobs: The number of trials. The default is 1. For a grid, the default is the number of points. With a shared
            fleet, the default is as many trials as can start before the deadline.
        max_parallel_jobs: The number of trials that run at once. The default is 1. With a shared fleet, the default is
            one trial per host.
        max_runtime_in_seconds: The number of seconds after which the tuning job is stopped.
        tags: The tags of the trials' jobs.
        base_tuning_job_name: The prefix of the tuning job's name. The default is the estimator's prefix.
        warm_start_config: The earlier tuning jobs whose trials are known to the search from the start.
        strategy_config: For Hyperband and ASHA. The number of reported values before which no trial is stopped, and the
            number after which a trial is complete.
        completion_criteria_config: Criteria for ending the tuning job before its last trial, such as a target value.
        early_stopping_type: ``Auto`` to stop trials that are worse than the median of the other trials, or ``Off``.
        random_seed: The seed of the random numbers. With the same seed, a new tuning job can repeat the search.
        reduction_factor: Not in the SageMaker SDK. For Hyperband and ASHA. At each stage, one in this many trials
            continues.
        population_config: Not in the SageMaker SDK. The options of PBT.
        max_failures: Not in the SageMaker SDK. The number of failed trials after which the tuning job ends. With None,
            failures end the tuning job only if no trial has reported a value yet: after five failed trials, or after
            one trial that has completed without a value.
        repeats: Not in the SageMaker SDK. Whether several trials may have the same hyperparameters, for scripts with
            random results. If False, the tuning job ends when all combinations have been tried.
        shared_fleet: Not in the SageMaker SDK. The number of hosts that all trials share until the deadline
            ``max_runtime_in_seconds``. Promising trials get more hosts. The estimator needs
            ``ElasticHorovod(max_hosts=…)``.
        estimator_name, autotune, hyperparameters_to_keep_static: Arguments of the SageMaker SDK that are not supported.

    Raises:
        ConfigurationError: an argument is wrong. The error is also a ValueError.
        UnsupportedError: an argument is not available.

    Attributes:
        latest_tuning_job: The record of the tuning job that was started or attached last, or None.
    """

    TUNING_JOB_NAME_MAX_LENGTH = 32

    def __init__(
        self,
        estimator: Estimator,
        objective_metric_name: str,
        hyperparameter_ranges: Mapping[str, ranges.ParameterRange],
        metric_definitions: Any = None,
        strategy: str = "Bayesian",
        objective_type: str = "Maximize",
        max_jobs: int | None = None,
        max_parallel_jobs: int = 1,
        max_runtime_in_seconds: int | None = None,
        tags: Any = None,
        base_tuning_job_name: str | None = None,
        warm_start_config: WarmStartConfig | None = None,
        strategy_config: StrategyConfig | None = None,
        completion_criteria_config: TuningJobCompletionCriteriaConfig | None = None,
        early_stopping_type: str = "Off",
        estimator_name: str | None = None,
        random_seed: int | None = None,
        autotune: bool = False,
        hyperparameters_to_keep_static: list[str] | None = None,
        *,
        reduction_factor: int = 3,
        population_config: PopulationConfig | None = None,
        max_failures: int | None = None,
        repeats: bool = False,
        shared_fleet: SharedFleetConfig | int | None = None,
    ) -> None:
        if shared_fleet is not None and not isinstance(shared_fleet, SharedFleetConfig):
            shared_fleet = SharedFleetConfig(hosts=shared_fleet)
        _check_estimator("HyperparameterTuner", estimator)
        if autotune or hyperparameters_to_keep_static is not None:
            if not autotune:
                raise ConfigurationError("hyperparameters_to_keep_static needs autotune=True.")
            raise UnsupportedError("autotune=True: fleetfit cannot choose ranges as SageMaker does. Give the ranges.")
        if estimator_name is not None:
            raise UnsupportedError("estimator_name: a tuning job has one estimator in fleetfit. Leave the name out.")
        if not hyperparameter_ranges:
            raise ConfigurationError("Need to specify hyperparameter ranges or set autotune=True.")
        self.estimator = estimator
        self.objective_metric_name = objective_metric_name
        self._hyperparameter_ranges = dict(hyperparameter_ranges)
        self.metric_definitions = metric_definitions
        self.strategy = strategy
        self.objective_type = objective_type
        if max_jobs is None and strategy != "Grid":
            max_jobs = 1 if shared_fleet is None else _ENOUGH_JOBS
        self.max_jobs = max_jobs
        self.max_parallel_jobs = max_parallel_jobs
        self.max_runtime_in_seconds = max_runtime_in_seconds
        self.tags = tags
        self.base_tuning_job_name = base_tuning_job_name
        self.warm_start_config = warm_start_config
        self.strategy_config = strategy_config
        self.completion_criteria_config = completion_criteria_config
        self.early_stopping_type = early_stopping_type
        self.random_seed = random_seed
        self.autotune = False
        self.reduction_factor = reduction_factor
        self.population_config = population_config
        self.max_failures = max_failures
        self.repeats = repeats
        self.shared_fleet = shared_fleet
        self.latest_tuning_job: TuningRecord | None = None
        self._spec("check")  # validates all arguments

    def __repr__(self) -> str:
        names = ", ".join(self._hyperparameter_ranges)
        return f"<HyperparameterTuner of {self.objective_metric_name!r} over {names}: {self.strategy}>"

    def _repr_html_(self) -> str | None:
        from estimators.tuning.display import study_html

        return study_html(self.latest_tuning_job) if self.latest_tuning_job is not None else None

    @classmethod
    def create(cls, *_: Any, **__: Any) -> HyperparameterTuner:
        """Raise UnsupportedError, because a tuning job has only one estimator.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            "HyperparameterTuner.create(): a tuning job has one estimator in fleetfit. Start a tuner per estimator, or "
            "make the choice a CategoricalParameter of one script."
        )

    def add_fleet_ranges(
        self,
        hosts: ranges.ParameterRange | None = None,
        processes_per_host: ranges.ParameterRange | None = None,
        fusion_threshold_mb: ranges.ParameterRange | None = None,
    ) -> None:
        """Add the number of hosts and other settings of the launcher to the search, for an objective such as time or
        speed.

        The settings are named ``fleet.hosts``, ``fleet.processes_per_host`` and ``fleet.fusion_threshold_mb``. Scripts
        do not receive these settings as hyperparameters. The estimator that :meth:`best_estimator` returns has the best
        values in its ``instance_count`` and ``distribution``.

        Args:
            hosts: The range of the number of hosts. If the estimator's ``instance_count`` is more than 1, the default
                is from 1 to ``instance_count``. Otherwise the number is not searched by default.
            processes_per_host: The range of the processes per host. None to exclude the processes per host from the
                search.
            fusion_threshold_mb: The range of Horovod's fusion threshold in MB. None to exclude the threshold from the
                search.

        Raises:
            ConfigurationError: no range is given although the estimator has one host, a range has impossible values, or
                the strategy does not have the setting.
        """
        count = self.estimator.settings.instance_count or 1
        if hosts is None and count > 1:
            hosts = ranges.IntegerParameter(1, count)
        given = {
            "hosts": hosts,
            "processes_per_host": processes_per_host,
            "fusion_threshold_mb": fusion_threshold_mb,
        }
        found = {name: value for name, value in given.items() if value is not None}
        if not found:
            raise ConfigurationError("add_fleet_ranges(): the estimator has only one host. Give at least one range.")
        strategy = self.estimator.settings.distribution
        for name, value in found.items():
            ends = (
                value.choices if isinstance(value, ranges.CategoricalParameter) else [value.min_value, value.max_value]
            )
            if name == "hosts":
                if not all(isinstance(end, int) and end >= 1 for end in ends):
                    raise ConfigurationError(
                        f"add_fleet_ranges(hosts={value!r}): each number must be a whole number of at least 1."
                    )
                continue
            if not hasattr(strategy, name):
                named = type(strategy).__name__
                lacks = "the estimator has no distribution" if strategy is None else f"{named} has no such option"
                raise ConfigurationError(
                    f"add_fleet_ranges({name}=…): {lacks}. This range needs a distribution with the option {name}."
                )
            for end in ends:
                dataclasses.replace(strategy, **{name: end})  # type: ignore[type-var]
        self._hyperparameter_ranges.update({f"{trials.FLEET}{name}": value for name, value in found.items()})

    # --- starting ---

    def hyperparameter_ranges(self) -> dict[str, list[dict[str, Any]]]:
        """Return the ranges in the format of CreateHyperParameterTuningJob."""
        return ranges.to_request(self._hyperparameter_ranges, plain=self.estimator.settings.is_plain)

    def fit(
        self,
        inputs: Inputs = None,
        job_name: str | None = None,
        include_cls_metadata: bool = False,
        estimator_kwargs: Any = None,
        wait: bool = True,
    ) -> None:
        """Start the tuning job.

        The tuning job continues even if this process ends. If the user interrupts the waiting (Ctrl-C), the tuning job
        continues too. :meth:`stop_tuning_job` stops it.

        Args:
            inputs: The data of every trial, as for the estimator's ``fit()``.
            job_name: The tuning job's name, which has at most 32 characters. The default is ``<base>-<time>``.
            include_cls_metadata, estimator_kwargs: Arguments of the SageMaker SDK, without effect.
            wait: Whether to wait until the tuning job ends, and to show the trials.

        Raises:
            ConfigurationError: an argument is wrong. No job has been started.
            UnsupportedError: a feature is not available. No job has been started.
            JobExistsError: the name is already used.
            TuningJobError: the tuning job failed (only with ``wait=True``).
        """
        del include_cls_metadata, estimator_kwargs
        for attempt in range(1, _NAME_ATTEMPTS + 1):
            name = job_name if job_name is not None else self._name()
            try:
                self._start(name, inputs)
                break
            except JobExistsError:
                if job_name is not None or attempt == _NAME_ATTEMPTS:
                    raise
                time.sleep(0.01)
        if wait:
            self.wait()

    def plan(self, inputs: Inputs = None, job_name: str | None = None) -> TuningPlan:
        """Return the plan of the tuning job that :meth:`fit` would start. No job is started.

        For SageMaker, the printed plan contains the request. Otherwise, it contains the processes of a trial.

        Args:
            inputs: The data, as for :meth:`fit`.
            job_name: The tuning job's name, as for :meth:`fit`.

        Raises:
            ConfigurationError: an argument is wrong.
            UnsupportedError: a feature is not available.
        """
        spec, draft = self._draft(job_name if job_name is not None else self._name(), inputs)
        request = request_of(spec, draft.spec.to_request())
        return TuningPlan(spec=spec, request=request, trial=draft.plan())

    def _draft(self, name: str, inputs: Any) -> tuple[TuningSpec, Draft]:
        """Return the spec of the tuning job, and the draft that all trials' jobs have in common.

        The trials' jobs are not checked against the limits of the backend and of this machine. See
        :meth:`Draft.check`.
        """
        spec = self._spec(name)
        estimator = self.estimator
        settings = estimator.settings
        managed = settings.capabilities.managed
        self._check_shared()
        if managed:
            check_managed(spec, settings.instance_type)
        else:
            running.check_possible(spec)
        if self.strategy == "PBT" and settings.checkpoint_s3_uri is not None:
            raise UnsupportedError(
                "strategy 'PBT': trials resume from checkpoints in each other's records. Leave checkpoint_s3_uri out."
            )
        tuned = self._hyperparameter_ranges
        fixed = sorted(name for name in tuned if codec.option_of(name) in codec.values_in(settings.arguments or ()))
        if fixed:
            raise ConfigurationError(
                f"arguments and hyperparameter_ranges both set {', '.join(map(codec.option_of, fixed))}. Remove the "
                "option from arguments, or its range."
            )
        values = {key: value for key, value in settings.hyperparameters.items() if key not in tuned}
        changes: dict[str, Any] = {"hyperparameters": values}
        if self.metric_definitions is not None:
            changes["metric_definitions"] = self.metric_definitions
        if self.tags is not None:
            changes["tags"] = self.tags
        examples = {name: ranges.examples(one) for name, one in tuned.items() if not name.startswith(trials.FLEET)}
        if self.strategy == "PBT":
            examples[spec.members.resource] = [spec.members.interval]
        draft = Draft.make(
            dataclasses.replace(settings, **changes), inputs, name=name,
            passes_model_dir=estimator._passes_model_dir, tuned=examples, framework=estimator._framework,
        )  # fmt: skip
        if managed:
            request = request_of(spec, draft.spec.to_request(), masked=False)
            backends.load_service(draft.options.backend).check_tuning(draft.spec, request)
        return spec, draft

    def _start(self, name: str, inputs: Any) -> None:
        spec, draft = self._draft(name, inputs)
        draft.check()
        for warning in draft.warnings:
            warn(warning, PreflightWarning)
        with running.creating(
            spec,
            estimator=type(self.estimator).__name__,
            request=request_of(spec, draft.spec.to_request()),
            env=draft.env,
        ) as template:
            backend = backends.load(draft.options.backend)
            options = dataclasses.replace(draft.options, backend_options=backend.patient(draft.options))
            launch.fill(template, draft.spec, options, draft.source, time.time())
            found = backend.found(draft.spec)
            if found is not None:
                template.write_json(template.found_file, found)
        self.latest_tuning_job = TuningRecord.open(name)

    def _spec(self, name: str) -> TuningSpec:
        hyperband = self.strategy_config.hyperband_strategy_config if self.strategy_config is not None else None
        if hyperband is not None and self.strategy not in ("Hyperband", "ASHA"):
            raise ConfigurationError(
                f"strategy_config is for the strategies Hyperband and ASHA, but the strategy is {self.strategy!r}."
            )
        if self.population_config is not None and self.strategy != "PBT":
            raise ConfigurationError(
                f"population_config is for the strategy PBT, but the strategy is {self.strategy!r}."
            )
        population = self.population_config or PopulationConfig()
        completion = self.completion_criteria_config
        warm = self.warm_start_config
        return TuningSpec(
            name=name,
            objective=self.objective_metric_name,
            objective_type=self.objective_type,
            parameter_ranges=self.hyperparameter_ranges(),
            strategy=self.strategy,
            max_jobs=self.max_jobs,
            max_parallel_jobs=self.max_parallel_jobs,
            max_runtime_s=self.max_runtime_in_seconds,
            early_stopping_type=self.early_stopping_type,
            min_resource=hyperband.min_resource if hyperband is not None else 1,
            max_resource=hyperband.max_resource if hyperband is not None else None,
            reduction_factor=self.reduction_factor,
            random_seed=self.random_seed,
            completion=completion.to_input_req() if completion is not None else {},
            warm_start=warm.to_input_req() if warm is not None else {},
            population=dataclasses.asdict(population) if self.strategy == "PBT" else {},
            max_failures=self.max_failures,
            repeats=self.repeats,
            shared_fleet=dataclasses.asdict(self.shared_fleet) if self.shared_fleet is not None else {},
        )

    def _check_shared(self) -> None:
        """Check that the shared fleet can decide how many hosts each trial has. Do nothing without a shared fleet.

        Raises:
            ConfigurationError: the estimator's strategy, its number of hosts or a range does not allow this.
        """
        settings, fleet = self.estimator.settings, self.shared_fleet
        if fleet is None:
            return
        strategy = settings.distribution
        if not isinstance(strategy, ElasticHorovod):
            named = type(strategy).__name__ if strategy is not None else "no distribution"
            raise ConfigurationError(
                "shared_fleet moves hosts between trials, so the estimator needs the distribution "
                f"ElasticHorovod(max_hosts=…). Its distribution is {named}."
            )
        if strategy.discovery is not None or strategy.spares:
            raise ConfigurationError(
                "shared_fleet decides which hosts a trial has. Remove the arguments discovery= and spares=."
            )
        count = settings.instance_count or 1
        if (strategy.max_hosts or count) <= count:
            raise ConfigurationError(
                f"shared_fleet: a trial begins with instance_count={count} hosts and cannot grow. Set "
                f"ElasticHorovod(max_hosts=…) to more than {count}."
            )
        if count > fleet.hosts:
            raise ConfigurationError(
                f"shared_fleet: a trial begins with instance_count={count} hosts, but the fleet has {fleet.hosts}."
            )
        names = [name for name in self._hyperparameter_ranges if name.startswith(trials.FLEET)]
        if names:
            raise ConfigurationError(f"shared_fleet decides how many hosts a trial has. Leave out {', '.join(names)}.")

    def _name(self) -> str:
        base = self.base_tuning_job_name
        if base is None:
            base = self.estimator.settings.base_job_name or base_of_name(self.estimator._job_name(None))
        stamp = time.strftime("%y%m%d-%H%M%S", time.gmtime()) + f"{time.time_ns() // 10_000_000 % 100:02d}"
        base = re.sub(r"[^a-zA-Z0-9]+", "-", base).strip("-")[: self.TUNING_JOB_NAME_MAX_LENGTH - len(stamp) - 1]
        return f"{base.rstrip('-') or 'tuning'}-{stamp}"

    # --- the latest tuning job ---

    @classmethod
    def attach(
        cls,
        tuning_job_name: str,
        sagemaker_session: Any = None,
        job_details: Any = None,
        estimator_cls: Any = None,
    ) -> HyperparameterTuner:
        """Return the tuner of an existing tuning job, which another process may have started.

        If the process of the tuning job was killed, a new process is started.

        Args:
            tuning_job_name: The tuning job's name. If this machine has no record of the tuning job, fleetfit searches
                SageMaker. The search needs a session or a configured region.
            sagemaker_session: The session of the tuner's estimator.
            job_details, estimator_cls: Arguments of the SageMaker SDK, without effect.

        Raises:
            JobNotFoundError: the tuning job does not exist. The message suggests the most similar name.
        """
        del job_details, estimator_cls
        try:
            record = TuningRecord.open(tuning_job_name)
        except JobNotFoundError as error:
            from estimators.tuning import adopting

            record = adopting.adopt(tuning_job_name, sagemaker_session, not_here=error)
        kind = {"TensorFlow": TensorFlow}.get(record.read("tuning").get("estimator"), Estimator)
        estimator = kind.__new__(kind)
        settings = settings_of(record.template, sagemaker_session, passes_model_dir=kind._passes_model_dir)
        estimator._settings = dataclasses.replace(settings, base_job_name=base_of_name(record.name))
        estimator.latest_training_job = None
        estimator.jobs = []
        spec = record.spec
        completion = TuningJobCompletionCriteriaConfig.from_job_desc(spec.completion) if spec.completion else None
        tuner = cls(
            estimator,
            spec.objective,
            ranges.from_request(spec.parameter_ranges, plain=estimator._settings.is_plain),
            strategy=spec.strategy,
            objective_type=spec.objective_type,
            max_jobs=spec.max_jobs,
            max_parallel_jobs=spec.max_parallel_jobs,
            max_runtime_in_seconds=spec.max_runtime_s,
            base_tuning_job_name=base_of_name(record.name),
            warm_start_config=WarmStartConfig.from_job_desc(spec.warm_start),
            completion_criteria_config=completion,
            early_stopping_type=spec.early_stopping_type,
            random_seed=spec.random_seed,
            reduction_factor=spec.reduction_factor,
            population_config=spec.members if spec.population else None,
            max_failures=spec.max_failures,
            repeats=spec.repeats,
            shared_fleet=spec.fleet,
        )
        if spec.max_resource is not None:
            from estimators.tuning.config import HyperbandStrategyConfig

            tuner.strategy_config = StrategyConfig(HyperbandStrategyConfig(spec.max_resource, spec.min_resource))
        tuner.latest_tuning_job = record
        running.ensure(record, tuner._env())
        return tuner

    def _env(self) -> dict[str, str] | None:
        """Return the environment variables that pass the user's session to the tuning job's process. Return None if the
        trials run on the user's hosts.
        """
        if not self.estimator.settings.capabilities.managed:
            return None
        from estimators.backends.sagemaker.aws import supervisor_environment

        return supervisor_environment(self.estimator.settings.sagemaker_session)

    def _record(self) -> TuningRecord:
        if self.latest_tuning_job is None:
            raise ConfigurationError("No tuning job available: call fit(), or use attach(name).")
        return self.latest_tuning_job

    @property
    def name(self) -> str:
        """Return the name of the latest tuning job.

        Raises:
            ConfigurationError: no tuning job has been started or attached.
        """
        return self._record().name

    def describe(self) -> dict[str, Any]:
        """Return the response of DescribeHyperParameterTuningJob, with times as seconds since the epoch."""
        return describe(self._record())

    def analytics(self) -> HyperparameterTuningJobAnalytics:
        """Return an object that describes the trials. The object's ``dataframe()`` returns a table of the trials."""
        record = self._record()
        return HyperparameterTuningJobAnalytics(record.name, home=record.home)

    def stop_tuning_job(self) -> None:
        """Request that the tuning job and its trials stop, and return at once.

        Do nothing if the tuning job has ended.
        """
        running.stop(self._record(), self._env())

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the tuning job ends, and show each trial that ends.

        If the process of the tuning job is killed, a new process is started.

        Args:
            timeout: The number of seconds after which to stop waiting. The tuning job then continues. None for no
                limit.

        Raises:
            TuningJobError: the tuning job failed.
            TimeoutError: the tuning job has not ended after ``timeout`` seconds.
            KeyboardInterrupt: the user interrupted the waiting. The tuning job continues.
        """
        record = self._record()
        show = NotebookDisplay(record) if in_jupyter(sys.stdout) else TrialLines(record)
        try:
            for _ in running.follow(record, timeout, self._env()):
                show.changed()
        except KeyboardInterrupt:
            text = f"tuning job {record.name} continues; stop_tuning_job() stops it."
            write_text(sys.stderr, f"{text}\n")
            raise told_interrupt(text) from None
        status = record.status()
        if status["HyperParameterTuningJobStatus"] == "Failed":
            raise failure(record, status)

    def best_training_job(self) -> str:
        """Return the name of the training job of the best trial so far.

        Raises:
            ConfigurationError: no trial has completed with a value of the objective.
        """
        record = self._record()
        best = record.status().get("Fleetfit", {}).get("best")
        for row in record.trials():
            if row["number"] == best:
                return str(row["job"])
        raise ConfigurationError(f"Best training job not available for tuning job: {record.name}")

    def best_estimator(self, best_training_job: Any = None) -> Estimator:
        """Return an estimator that is attached to the best trial's training job, with the job's hyperparameters and
        model.

        Args:
            best_training_job: The name of another trial's job, or SageMaker's summary of the job. None to use the best
                trial's job.
        """
        job = best_training_job if best_training_job is not None else self.best_training_job()
        name = job["TrainingJobName"] if isinstance(job, Mapping) else job
        return type(self.estimator).attach(name, self.estimator.settings.sagemaker_session)

    def trials(self) -> list[TrainingJob]:
        """Return the training jobs of all trials that have started."""
        record = self._record()
        if record.is_managed:  # creates local records of the jobs from the service's data
            session = self.estimator.settings.sagemaker_session
            return [find_job(row["job"], session) for row in record.trials()]
        names = [row["job"] for row in record.trials()]
        return [TrainingJob.attach(name, record.home) for name in names if (jobs_folder(record.home) / name).is_dir()]

    def deploy(self, *_: Any, **__: Any) -> Any:
        """Raise UnsupportedError, because fleetfit does not deploy models.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError("HyperparameterTuner.deploy(): fleetfit only trains; serve best_estimator().model_data.")

    # --- warm starts ---

    def identical_dataset_and_algorithm_tuner(self, additional_parents: Any = None) -> HyperparameterTuner:
        """Return a tuner that continues this tuner's search with the same estimator and ranges. The search begins with
        the trials of this tuner's last tuning job.

        Args:
            additional_parents: The names of other tuning jobs whose trials are used too.
        """
        return self._warm(WarmStartTypes.IDENTICAL_DATA_AND_ALGORITHM, additional_parents, self.estimator)

    def transfer_learning_tuner(
        self, additional_parents: Any = None, estimator: Estimator | None = None
    ) -> HyperparameterTuner:
        """Return a tuner for other data or a different estimator. The search begins with the trials of this tuner's
        last tuning job.

        Args:
            additional_parents: The names of other tuning jobs whose trials are used too.
            estimator: The estimator of the new tuner. None to use this tuner's estimator.

        Raises:
            ConfigurationError: ``estimator`` is not an estimator.
        """
        if estimator is not None:
            _check_estimator("transfer_learning_tuner", estimator)
        return self._warm(WarmStartTypes.TRANSFER_LEARNING, additional_parents, estimator or self.estimator)

    def _warm(self, kind: WarmStartTypes, others: Any, estimator: Estimator) -> HyperparameterTuner:
        tuner = copy.copy(self)
        tuner._hyperparameter_ranges = dict(self._hyperparameter_ranges)
        tuner.estimator, tuner.base_tuning_job_name, tuner.latest_tuning_job = estimator, None, None
        tuner.warm_start_config = WarmStartConfig(kind, {self.name, *(others or ())})
        tuner._spec("check")  # the new estimator or the attributes of this tuner may be invalid
        return tuner


def _check_estimator(where: str, value: Any) -> None:
    if not isinstance(value, Estimator):
        raise ConfigurationError(f"{where}(estimator=…) must be an estimator; got {shown(value)}.")
