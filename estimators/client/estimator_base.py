"""Implement the behaviour of all estimators: check arguments, start training jobs, and keep the jobs' handles."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from container.contract import hyperparameters as codec
from container.contract import rules
from container.contract.names import shown, suggesting, suggests_arguments, unknown
from container.contract.strategies import framework_problem
from estimators.client import request_builder
from estimators.client.callbacks import Callbacks, check_callbacks
from estimators.client.launch import launch
from estimators.client.prepared_job import Draft
from estimators.client.printing import in_jupyter
from estimators.client.source import Source
from estimators.client.training_job import TrainingJob
from estimators.job import naming, validation
from estimators.job.arguments import ARGUMENTS, BY_NAME, Owner, Treatment, read_arguments
from estimators.job.errors import (
    ArgumentNameError,
    ConfigurationError,
    JobExistsError,
    PreflightWarning,
    UnsupportedError,
    warn,
    with_users_frames_only,
)
from estimators.job.faults import Fault
from estimators.job.faults import check as check_faults
from estimators.job.inputs import Inputs
from estimators.job.settings import Settings

if TYPE_CHECKING:
    from estimators.client.analytics import TrainingJobAnalytics
    from estimators.client.cluster_plan import ClusterPlan
    from estimators.results.result import Result

E = TypeVar("E", bound="EstimatorBase")

#: The values of ``fit(logs=…)`` in the SageMaker SDK 2.x.
Logs = Literal["All", "Training", "None"]

#: For each value of ``fit(logs=…)`` in the SageMaker SDK 2.x: whether logs are shown, and whether every line is shown.
_LOGS = {"All": (True, True), "Training": (True, False), "None": (False, False)}

#: Methods of the SageMaker SDK's estimators that fleetfit does not offer, because they do not train -> the text for the
#: error.
_NOT_OURS = {
    "deploy": "fleetfit only trains. Serve model_data with TensorFlow Serving, or deploy it with the SageMaker SDK",
    "transformer": "fleetfit only trains; batch transforms are a service of AWS",
    "register": "fleetfit only trains. Register model_data in SageMaker's model registry",
    "create_model": "fleetfit only trains. Create a model from model_data with the SageMaker SDK",
    "compile_model": "SageMaker Neo is a service of AWS",
    "enable_default_profiling": "SageMaker Profiler is a service of AWS",
    "disable_profiling": "SageMaker Profiler is a service of AWS",
    "update_profiler": "SageMaker Profiler is a service of AWS",
}

#: Maximum number of attempts to generate an unused job name. A generated name contains the time in milliseconds.
#: Therefore two processes can generate the same name in the same millisecond.
_NAME_ATTEMPTS = 20


_FIELDS = frozenset(field.name for field in dataclasses.fields(Settings))


def _signature(cls: type[EstimatorBase]) -> inspect.Signature:
    """Return the signature that ``help()``, Jupyter's tooltips and the stub show for an estimator's constructor."""
    fields = {field.name: field for field in dataclasses.fields(Settings)}
    taken = [item.name for item in ARGUMENTS if item.owner in cls._owners and item.treatment is not Treatment.REFUSED]
    ordered = [*cls._positional, *(name for name in taken if name not in cls._positional)]
    return inspect.Signature(
        [
            inspect.Parameter(
                name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD if name in cls._positional else inspect.Parameter.KEYWORD_ONLY,
                default=fields[name].default if fields[name].default is not dataclasses.MISSING else None,
                annotation=BY_NAME[name].accepts or fields[name].type,
            )
            for name in ordered
        ]
    )


def _is_hyperparameter(name: str, value: Any) -> str:
    if name in Settings.__dataclass_fields__:
        return f"Pass {name} to the estimator: TensorFlow(…, {name}={shown(value)})."
    return f"To pass an argument to the script, give the estimator hyperparameters={{{name!r}: {shown(value)}}}."


@suggests_arguments
class EstimatorBase:
    """The base class of all estimators. An estimator starts training jobs.

    The subclasses in :mod:`estimators.client.estimator` define the arguments.
    """

    #: The groups of arguments (:class:`Owner`) that the constructor accepts.
    _owners: ClassVar[tuple[Owner, ...]] = ()
    #: The arguments that can be passed by position, in the order of the SageMaker SDK's class of the same name.
    _positional: ClassVar[tuple[str, ...]] = ()
    #: The first part of job names if neither ``base_job_name`` nor an image is set.
    _job_base: ClassVar[str] = "training-job"
    #: Whether scripts get the argument ``--model_dir``.
    _passes_model_dir: ClassVar[bool] = False
    #: The framework that the scripts use, or None if scripts may use any framework.
    _framework: ClassVar[str | None] = None

    latest_training_job: TrainingJob | None
    jobs: list[TrainingJob]
    _settings: Settings
    #: The settings that :meth:`attach` read from the job, or None if the estimator was not attached. After an argument
    #: has been changed, `_settings` is a different object.
    _attached: Settings | None = None

    def __init__(self, *args: Any, **arguments: Any) -> None:
        name = type(self).__name__
        if len(args) > len(self._positional):
            raise ArgumentNameError(
                f"{name}() takes at most {len(self._positional)} positional arguments "
                f"({', '.join(self._positional)}), got {len(args)}. Pass the other arguments by name."
            )
        for argument, value in zip(self._positional, args, strict=False):
            if argument in arguments:
                raise ArgumentNameError(f"{name}() got {argument} twice: by position ({shown(value)}) and by name.")
            arguments[argument] = value
        if args and "entry_point" not in arguments and (callable(args[0]) or str(args[0]).endswith((".py", ".sh"))):
            raise ArgumentNameError(
                f"{name}({shown(args[0])}): the first positional argument is {self._positional[0]}, as in "
                f"SageMaker's SDK. Write {name}(entry_point={shown(args[0])})."
            )
        values = read_arguments(arguments, constructor=name, owners=self._owners)
        self._settings = self._fitting(Settings(**values))
        self.latest_training_job = None
        self.jobs = []

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" not in cls.__dict__:
            cls.__signature__ = _signature(cls)  # type: ignore[attr-defined]

    # --- arguments as attributes ---

    if not TYPE_CHECKING:  # the stub declares every argument, so that type checkers report unknown names

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            if self._is_argument(name):
                value = getattr(self._settings, name)
                return value.copy() if isinstance(value, dict) else value
            if name in _NOT_OURS:
                raise UnsupportedError(f"{type(self).__name__}.{name}() is not available: {_NOT_OURS[name]}.")
            # without a full stop, because Python appends its suggestion
            raise with_users_frames_only(AttributeError(f"{type(self).__name__} has no attribute {name!r}"))

        def __setattr__(self, name: str, value: Any) -> None:
            if name == "hyperparameters":
                raise AttributeError(
                    "hyperparameters is a method and cannot be set. Use set_hyperparameters(name=value)."
                )
            if self._is_argument(name):
                value = self._fitting(dataclasses.replace(self._settings, **{name: value}))
                name = "_settings"
            object.__setattr__(self, name, value)

    @classmethod
    def _fitting(cls, settings: Settings) -> Settings:
        """Check that the strategy supports the estimator's framework, and return the settings unchanged.

        Raises:
            ConfigurationError: the strategy does not support the estimator's framework.
        """
        problem = framework_problem(settings.distribution, cls._framework)
        if problem is not None:
            raise ConfigurationError(problem)
        return settings

    @classmethod
    def _is_argument(cls, name: str) -> bool:
        argument = BY_NAME.get(name)
        return argument is not None and argument.owner in cls._owners and name in _FIELDS

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(item.name for item in ARGUMENTS if self._is_argument(item.name))})

    def __repr__(self) -> str:
        settings = self._settings
        given = {
            field.name: getattr(settings, field.name)
            for field in dataclasses.fields(settings)
            if field.name in ("entry_point", "source_dir", "instance_count", "instance_type", "distribution")
        }
        function = given.get("entry_point")
        if callable(function):
            given["entry_point"] = getattr(function, "__name__", type(function).__name__) + "()"
        values = ", ".join(f"{name}={shown(value)}" for name, value in given.items() if value is not None)
        return f"{type(self).__name__}({values})"

    def _repr_html_(self) -> str:
        from estimators.results.display import estimator_html

        job = self.latest_training_job
        latest = f"{job.name}, {job.status}" if job is not None else None
        return estimator_html(type(self).__name__, self._settings, latest)

    @property
    def settings(self) -> Settings:
        """Return all arguments as one immutable object."""
        return self._settings

    # --- hyperparameters ---

    def hyperparameters(self) -> dict[str, str]:
        """Return the hyperparameters as text, as a job receives them.

        The result includes the strategy's hyperparameters and ``model_dir``. Some hyperparameters, such as
        ``sagemaker_job_name``, depend on the job's name. These hyperparameters are taken from the latest job, and are
        missing before the first job.
        """
        values = request_builder.build_hyperparameters(
            self.settings, name=None, code=None, passes_model_dir=self._passes_model_dir
        )
        if self.latest_training_job is not None:
            sent = self.latest_training_job.record.read_request().get("HyperParameters") or {}
            ours = {name: text for name, text in sent.items() if codec.is_reserved(name) or name == codec.MODEL_DIR}
            values = {**ours, **values}
        return values

    def set_hyperparameters(self, **values: Any) -> None:
        """Add or change hyperparameters of future jobs."""
        merged = {**self._settings.hyperparameters, **values}
        self._settings = dataclasses.replace(self._settings, hyperparameters=merged)

    # --- training ---

    @suggesting(_is_hyperparameter)
    def fit(
        self,
        inputs: Inputs = None,
        wait: bool = True,
        logs: bool | Logs | Sequence[Logs] = True,
        job_name: str | None = None,
        callbacks: Callbacks = None,
        experiment_config: Mapping[str, str] | None = None,
        faults: Fault | Iterable[Fault] | None = None,
        *,
        all: bool = False,
    ) -> TrainingJob:
        """Start a training job.

        Args:
            inputs: The data for the channel ``training``: a path, a URI or a TrainingInput. For other channels, a dict
                from channel names to such values.
            wait: Whether to wait until the job ends. With True, the job is stopped if this process ends. With False,
                ``fit()`` returns at once, and the job continues even if this process ends. A job on SageMaker, or on a
                dispatcher (the machine that ``RunOptions(dispatcher=…)`` names), always continues. If this process
                waits for such a job, an interrupt stops only the waiting. To stop the job itself, call ``stop()``.
            logs: Whether to show the job's output while waiting. TensorFlow's start-up lines are hidden, and a line
                that several ranks print is shown once. The SageMaker SDK's values are also accepted: ``"Training"``
                means True, and ``"None"`` means False. ``"All"`` means True and also sets ``all``.
            job_name: The job's name. Two jobs cannot have the same name. The default is ``<base_job_name>-<time>``.
            callbacks: An :class:`estimators.callbacks.Callback` or a list of callbacks. Callbacks receive metrics and
                events.
            experiment_config: The experiment for SageMaker Experiments. Only jobs on SageMaker use this argument.
            faults: Faults to inject, to test how the job handles failures: a list of :class:`estimators.faults.Kill`,
                :class:`estimators.faults.RemoveHost` and :class:`estimators.faults.Interrupt`.
            all: Whether to show every line, as in ``job.logs(all=True)``.

        Returns:
            The job's handle, which is also available as ``latest_training_job``.

        Raises:
            ConfigurationError: an argument is wrong. Nothing has been started.
            UnsupportedError: a feature is not available. Nothing has been started.
            JobExistsError: a job with this name exists.
            TrainingJobError: the job failed. With ``wait=False``, the error means that SageMaker or the dispatcher
                refused the job.
            KeyboardInterrupt: the waiting was interrupted, and the job was stopped. A job on SageMaker or on a
                dispatcher is not stopped, and continues.
        """
        show, every = _parse_logs(logs)
        checked = check_callbacks(callbacks)
        rules.boolean("fit(wait=…)", wait)
        rules.boolean("fit(all=…)", all)
        if checked and not wait:
            raise ConfigurationError(
                "fit(callbacks=…) needs wait=True, because fit() calls the callbacks while it waits. With wait=False, "
                "pass the callbacks to job.wait(callbacks=…)."
            )
        job = self._launch(inputs, job_name, experiment_config, check_faults(faults), attached=wait)
        if wait:
            job.wait(logs=show, callbacks=checked, all=all or every)
        return job

    def plan(self, inputs: Inputs = None, job_name: str | None = None, *, check: bool = False) -> ClusterPlan:
        """Return the plan of the job that :meth:`fit` would start. Nothing is started.

        Args:
            inputs: The input channels, as for :meth:`fit`.
            job_name: The job's name, as for :meth:`fit`.
            check: Whether to run the checks with which :meth:`fit` begins. Some checks send requests to servers,
                such as S3 or the container engine. If a check fails, the plan's first warning has the reason.

        Returns:
            The plan: the processes of every host, with their commands and environment. ``print()`` shows the plan as
            text.

        Raises:
            ConfigurationError: an argument is wrong.
            UnsupportedError: the strategy is not available.
        """
        draft = self._draft(inputs, job_name)
        return draft.checked_plan() if check else draft.plan()

    def debug(self, inputs: Inputs = None, job_name: str | None = None) -> Any:
        """Run the entry point as one process in this terminal, so that ``breakpoint()`` and ``pdb`` work.

        The job always has one host and no strategy. No supervisor watches the process.

        Args:
            inputs: The input channels, as for :meth:`fit`.
            job_name: The job's name, as for :meth:`fit`.

        Returns:
            The return value of the function if the entry point is a function. None for a script.

        Raises:
            ConfigurationError: an argument is wrong, or there is no terminal, as in a notebook.
            TrainingJobError: the entry point failed. If a function has raised an exception, this exception is the
                error's cause.
        """
        from estimators.client import debugging

        return debugging.run_estimator(self, inputs, job_name)

    @classmethod
    def attach(
        cls: type[E],
        training_job_name: str,
        sagemaker_session: Any = None,
        model_channel_name: str = "model",
        *,
        dispatcher: str | None = None,
        dispatcher_options: Mapping[str, Any] | None = None,
    ) -> E:
        """Return an estimator whose latest job is an existing job. Another process may have started this job.

        If the job is on SageMaker and this machine has no record of the job, this method creates the record. This
        method does not wait for the job. To wait, call ``estimator.latest_training_job.wait()``.

        Args:
            training_job_name: The job's name.
            sagemaker_session: The session, as for the constructor.
            model_channel_name: An argument of the SageMaker SDK. It has no effect, because the job's request contains
                the name of the channel.
            dispatcher: The machine that runs the job's supervisor, as in ``RunOptions(dispatcher=…)``. This argument is
                required if another machine sent the job to the dispatcher.
            dispatcher_options: The options for the connection to the dispatcher.

        Raises:
            JobNotFoundError: the job does not exist. The message names the job with the most similar name.
        """
        from estimators.client.attaching import find_job, settings_of

        job = find_job(
            training_job_name, sagemaker_session, dispatcher=dispatcher, dispatcher_options=dispatcher_options
        )
        estimator = cls.__new__(cls)
        estimator._settings = settings_of(job.record, sagemaker_session, passes_model_dir=cls._passes_model_dir)
        estimator._attached = estimator._settings
        estimator.latest_training_job = job
        estimator.jobs = [job]
        return estimator

    @property
    def stands_for_its_job(self) -> bool:
        """Return whether :meth:`attach` created this estimator, and the estimator has not been changed or used since.

        If the estimator is unchanged, ``compare()`` uses the existing job and does not start another job.
        """
        return self._attached is self._settings and len(self.jobs) == 1

    def _launch(
        self,
        inputs: Any,
        job_name: str | None,
        experiment: Mapping[str, str] | None,
        faults: tuple[Fault, ...],
        *,
        attached: bool,
        source: Source | None = None,
    ) -> TrainingJob:
        warned = False
        for attempt in range(1, _NAME_ATTEMPTS + 1):
            draft = self._draft(inputs, job_name, experiment, faults, source)
            draft.check()
            for warning in draft.warnings if not warned else ():
                warn(warning, PreflightWarning)
            warned = True
            try:
                # A job on SageMaker or on a dispatcher continues when this process ends.
                tied = attached and not draft.settings.detached
                started = launch(draft.spec, draft.options, attached=tied, source=draft.source, env=draft.env)
            except JobExistsError:
                if job_name is not None or attempt == _NAME_ATTEMPTS:
                    raise
            else:
                break
        job = TrainingJob(*started)
        self.latest_training_job = job
        self.jobs.append(job)
        discovery = getattr(self.settings.distribution, "discovery", None)
        if callable(discovery):
            from estimators.client import host_discovery

            host_discovery.follow(discovery, job)
        if not attached and draft.settings.detached:
            # Without this wait, this process (in a container, for example) could end before the job has been sent.
            job._wait_until_taken()
        return job

    def _draft(
        self,
        inputs: Any,
        job_name: str | None,
        experiment: Mapping[str, str] | None = None,
        faults: tuple[Fault, ...] = (),
        source: Source | None = None,
    ) -> Draft:
        settings = self.settings
        if in_jupyter():
            from estimators.client import notebook

            settings = notebook.keep(settings)
        kept_with = os.getpid() if settings is not self.settings else None
        if faults:
            options = dataclasses.replace(settings.run_options, faults=(*settings.run_options.faults, *faults))
            settings = dataclasses.replace(settings, run_options=options)
        draft = Draft.make(
            settings,
            inputs,
            name=self._job_name(job_name),
            passes_model_dir=self._passes_model_dir,
            framework=self._framework,
            experiment=experiment,
            source=source,
        )
        return dataclasses.replace(draft, kept_with=kept_with)

    def _job_name(self, given: str | None) -> str:
        if given is not None:
            problem = validation.job_name_problem(given)
            if problem is not None:
                raise ConfigurationError(f"job_name {problem.removeprefix('TrainingJobName ')}")
            return given
        settings = self.settings
        base = settings.base_job_name
        if base is None:
            base = naming.base_of_image(settings.image_uri) if settings.image_uri else self._job_base
        return naming.job_name(base)

    # --- the latest job ---

    @property
    def model_data(self) -> str | None:
        """Return the path or URI of the latest job's ``model.tar.gz``. Return None if there is no job or no model."""
        return self.latest_training_job.model_data if self.latest_training_job is not None else None

    @property
    def training_job_analytics(self) -> TrainingJobAnalytics:
        """Return the metrics of the latest job as an object whose method ``dataframe()`` works as in the SageMaker SDK.

        Raises:
            ConfigurationError: no job has been started.
        """
        from estimators.client.analytics import TrainingJobAnalytics

        return TrainingJobAnalytics(self._job())

    def result(self) -> Result:
        """Return the result of the latest job: its status, durations and metrics.

        If the job is running, the result contains only what is known so far.

        Raises:
            ConfigurationError: there is no job yet.
        """
        return self._job().result()

    def logs(self) -> None:
        """Show the logs of the latest job until the job ends.

        Raises:
            ConfigurationError: there is no job yet.
        """
        self._job().logs(follow=True)

    def _job(self) -> TrainingJob:
        if self.latest_training_job is None:
            raise ConfigurationError("there is no training job yet: call fit(), or use attach(name).")
        return self.latest_training_job


def _parse_logs(logs: Any) -> tuple[bool, bool]:
    """Return whether to show the logs, and whether to show every line."""
    if isinstance(logs, bool):
        return logs, False
    if isinstance(logs, list | tuple) and not any(isinstance(item, list | tuple) for item in logs):
        parsed = [_parse_logs(item) for item in logs]
        return any(show for show, _ in parsed), any(every for _, every in parsed)
    if logs == "Rules":
        raise UnsupportedError("fit(logs='Rules'): SageMaker Debugger is a service of AWS.")
    if not isinstance(logs, str) or logs not in _LOGS:
        raise ConfigurationError(unknown("value of fit(logs=…)", logs, (*_LOGS, "True", "False")))
    return _LOGS[logs]
