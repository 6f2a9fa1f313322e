"""Build a job from an estimator's settings, check the job before the start, and plan its processes."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import sys
import types
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from container.contract import hyperparameters as codec
from container.contract import variables
from container.contract.frozen import dataclass
from container.contract.names import listed
from container.contract.strategies import FRAMEWORKS, MPI, ElasticHorovod
from estimators import backends
from estimators.client import checks, planning, request_builder
from estimators.client.cluster_plan import ClusterPlan
from estimators.client.preflight import check_fits, idle_devices, preflight
from estimators.client.source import Source, resolve, resolve_function
from estimators.job import validation
from estimators.job.errors import BackendError, ConfigurationError, UnsupportedError
from estimators.job.inputs import parse_inputs
from estimators.job.request import JobOptions, TrainingJobSpec
from estimators.job.settings import Settings
from estimators.records.record import jobs_folder

#: Matches words in code or in requirements files that show that TensorFlow is used.
_TENSORFLOW = re.compile(rb"tensorflow|keras|\btf|horovod(?!\s*\.\s*torch\b|\s+import\s+torch\b)", re.IGNORECASE)
#: Matches imports of PyTorch.
_TORCH = re.compile(rb"^[ \t]*(from|import)\b[^#\n]*\b(torch|pytorch|lightning)", re.MULTILINE)
_OURS = re.compile(rb"\bcontainer\b")

#: The beginning of a plan's warning for a job that fit() refuses.
_CANNOT_START = "the job cannot be started like this"


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A job that has been built from an estimator's settings, and has not been started.

    Attributes:
        spec: The specification of the job. :meth:`make` has checked that the specification satisfies SageMaker's
            rules.
        settings: The estimator's settings.
        source: The user's code, or None if the image contains the code or the code is on S3.
        framework: The script's framework, or None if the framework is unknown.
        problems: Descriptions of what a job on SageMaker lacks, such as a role or credentials, with remedies. A job
            with problems can be planned, but not started.
        remarks: Warnings about settings that fleetfit has chosen for a job on SageMaker.
        kept_with: The PID of the notebook's kernel if the notebook's default keep-alive period applies. Otherwise None.
            The process with the imported modules, which is kept for later jobs, exits at the latest when this kernel
            exits.
    """

    spec: TrainingJobSpec
    settings: Settings
    source: Source | None
    framework: str | None = None
    problems: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    kept_with: int | None = None

    @classmethod
    def make(
        cls,
        settings: Settings,
        inputs: Any,
        *,
        name: str,
        passes_model_dir: bool,
        framework: str | None = None,
        experiment: Mapping[str, str] | None = None,
        tuned: Mapping[str, Sequence[Any]] = types.MappingProxyType({}),
        source: Source | None = None,
    ) -> Draft:
        """Build a job from an estimator's settings.

        Args:
            settings: The estimator's settings.
            inputs: The value of ``inputs`` in ``fit()``.
            name: The job's name.
            passes_model_dir: Whether the script receives ``--model_dir``.
            framework: The script's framework, or None if the framework is unknown.
            experiment: SageMaker's ``ExperimentConfig``.
            tuned: The hyperparameters whose values a tuning job will add, with examples of the values.
            source: The user's code if the caller has already read it. With None, the code is found from the settings.

        Raises:
            ConfigurationError: a setting or an input is wrong.
            UnsupportedError: a feature is not available.
        """
        if experiment and not settings.capabilities.managed:
            raise UnsupportedError("experiment_config: SageMaker Experiments is a service of AWS.")
        problems: tuple[str, ...] = ()
        remarks: tuple[str, ...] = ()
        if settings.capabilities.managed:
            from estimators.backends.sagemaker import discovery

            found = discovery.discover(settings, framework or "tensorflow")
            settings, problems, remarks = found.settings, found.problems, found.warnings
        channels = parse_inputs(inputs)
        if source is None:
            added = (codec.MODEL_DIR,) if passes_model_dir and settings.model_dir is not False else ()
            source = _source(settings, frozenset(channel.name for channel in channels), tuned, added)
        code = _code_on_s3(settings)
        if source is not None:
            code = request_builder.Code(
                program=source.program, submit_directory=request_builder.submit_directory(settings, name)
            )
        spec = request_builder.build_spec(
            settings,
            name=name,
            channels=channels,
            code=code,
            passes_model_dir=passes_model_dir,
            experiment=dict(experiment) if experiment else None,
        )
        if settings.capabilities.managed:
            from estimators.backends.sagemaker import shipping
            from estimators.backends.sagemaker.options import SageMakerOptions

            toolkit = SageMakerOptions.of(settings.run_options.backend_options).toolkit
            prefix = request_builder.submit_directory(settings, name).rpartition("/")[0]
            spec = shipping.with_code_channel(spec, toolkit=toolkit, prefix=prefix)
            remarks = (*remarks, *shipping.warnings(spec))
        try:
            validation.check_spec(spec)
        except ConfigurationError as error:
            raise ConfigurationError(validation.in_arguments(str(error), spec)) from None
        return cls(spec=spec, settings=settings, source=source, framework=framework, problems=problems, remarks=remarks)

    @functools.cached_property
    def warnings(self) -> tuple[str, ...]:
        """Return warnings that the user should read before the job runs."""
        found = list(self.source.warnings()) if self.source is not None else []
        found += self.remarks
        here = self.settings.run_options.dispatcher is None
        if self.settings.capabilities.this_python and here:
            found += checks.version_warnings(
                self.settings.framework_version, self.settings.py_version, self.framework or "tensorflow"
            )
        if not self.settings.capabilities.simulated and here:
            found += preflight(self.spec)
        if here and (idle := idle_devices(self.spec)) is not None:
            found.append(idle)
        if here and (shared := checks.shared_checkpoints(self.spec)) is not None:
            found.append(shared)
        if self.source is not None and (replaced := planning.replaced_variables(self.spec, self._options)):
            found.append(
                f"environment: the value of {listed(replaced)} has no effect, because fleetfit sets the variable for "
                "every script. Use another name."
            )
        variables: dict[str, str] = {}
        for name in (channel.name for channel in self.spec.inputs):
            other = variables.setdefault(name.upper(), name)
            if other != name:
                found.append(
                    f"channels {other!r} and {name!r} have the same variable, SM_CHANNEL_{name.upper()}, so the script "
                    "finds only one of them there, as on SageMaker. Rename one of the channels."
                )
        market = self.settings.run_options.spot_market
        if self.spec.spot and not self.settings.capabilities.spot and (market is None or not market.interrupts):
            found.append(
                f"use_spot_instances=True causes no interruptions with instance_type={self.spec.instance_type!r}. To "
                "simulate interruptions, set RunOptions(spot_market=SpotMarket(…))."
            )
        return tuple(found)

    @functools.cached_property
    def options(self) -> JobOptions:
        """Return the run options, including the warnings to store in the record."""
        return dataclasses.replace(self._options, warnings=self.warnings)

    @functools.cached_property
    def _options(self) -> JobOptions:
        options = request_builder.build_options(self.settings)
        return dataclasses.replace(options, frameworks=self._frameworks)

    @property
    def _frameworks(self) -> tuple[str, ...]:
        """Return the frameworks that the script and the strategy need.

        Only backends that create a Python environment for each job use the result. For all other backends, the result
        is always ``tensorflow``.
        """
        if self.source is None or not self.settings.capabilities.own_environment:
            return ("tensorflow",)
        needed = {
            "tensorflow": self._needs_tensorflow(self.source),
            "torch": self._is_for("torch") or self._told(rb"\btorch\b") or self.source.names(_TORCH, packed=False),
        }
        return tuple(name for name in FRAMEWORKS if needed[name])

    def _is_for(self, framework: str) -> bool:
        strategy = self.spec.strategy
        return framework == self.framework or (strategy is not None and strategy.frameworks == (framework,))

    def _told(self, pattern: bytes | re.Pattern[bytes]) -> bool:
        """Return whether a pattern matches a hyperparameter, an environment variable or an argument of the script."""
        given = (self.settings.hyperparameters, self.settings.environment or {})
        told = [*(value for each in given for value in each.values()), *(self.settings.arguments or ())]
        return any(re.search(pattern, str(one).encode("utf-8", "replace")) for one in told)

    def _needs_tensorflow(self, source: Source) -> bool:
        if self._is_for("tensorflow") or self._told(_TENSORFLOW):
            return True
        # With these strategies, a script that imports the package `container` uses Horovod for TensorFlow through it.
        ours = isinstance(self.spec.strategy, MPI | ElasticHorovod) and source.names(_OURS)
        return (ours and not self._is_for("torch")) or source.names(_TENSORFLOW)

    def plan(self) -> ClusterPlan:
        """Return the plan of the job's processes on every host. Repeated calls return the same object."""
        return self._plan

    def checked_plan(self) -> ClusterPlan:
        """Return the plan. If :meth:`check` refuses the job, the first warning of the plan gives the reason."""
        plan = self.plan()
        if self.problems:
            return plan  # the plan's warnings already contain the reasons
        try:
            self.check()
        except (ConfigurationError, BackendError) as error:
            return dataclasses.replace(plan, warnings=(f"{_CANNOT_START}: {error}", *plan.warnings))
        return plan

    @functools.cached_property
    def _plan(self) -> ClusterPlan:
        missing = tuple(f"{_CANNOT_START}: {problem}" for problem in self.problems)
        warnings = (*missing, *self.warnings)
        return planning.plan_cluster(self.spec, self._options, source=self.source, warnings=warnings)

    @property
    def env(self) -> dict[str, str] | None:
        """Return the environment variables of the job's supervisor.

        Return None if the supervisor inherits the environment of this process.
        """
        if not self.settings.capabilities.managed:
            return {**os.environ, variables.KEPT_WITH: str(self.kept_with)} if self.kept_with else None
        from estimators.backends.sagemaker.aws import supervisor_environment

        return supervisor_environment(self.settings.sagemaker_session)

    def check(self) -> None:
        """Check that the job can run, before anything is created or started.

        Raises:
            ConfigurationError: a channel, an output or an option of the strategy is wrong.
            UnsupportedError: the backend does not support a setting.
        """
        instance_type = self.spec.instance_type
        options = self._options
        backend = backends.load(options.backend)
        checks.check_queue(self.spec, options)
        if options.dispatcher is not None:
            self._check_dispatched(options.dispatcher)
            return
        checks.check_elastic(self.spec)
        if not self.settings.capabilities.managed:
            checks.check_local(self.spec)
            check_fits(self.spec)
            checks.check_faults(self.spec, options)
            if self.settings.capabilities.this_python and self.source is not None:
                if options.python in (None, sys.executable):
                    checks.check_syntax(self.source)
                checks.check_horovod(self.spec, self.source, self.framework, options.python or sys.executable)
        else:
            checks.refuse_faults(instance_type, options)
        backend.check(self.spec, options)
        if self.settings.capabilities.managed:
            if self.problems:
                raise ConfigurationError(_listed(f"instance_type {instance_type!r}", self.problems))
            self.plan()
            return
        if self.settings.capabilities.simulated:
            return
        self.plan()
        checks.check_data(self.spec, options.python)  # last, because this check sends requests to servers

    def _check_dispatched(self, place: str) -> None:
        """Run the checks that are possible on this machine for a job with a dispatcher.

        The dispatcher runs the other checks.
        """
        from estimators.backends import dispatchers
        from estimators.backends.dispatchers import parcels

        options = self._options
        dispatchers.load(place).check(place, options.dispatcher_options)
        if self.settings.capabilities.managed:
            raise UnsupportedError(
                f"dispatcher={place!r}: a job with instance_type {self.spec.instance_type!r} needs no dispatcher, "
                "because it continues without this machine once it has started. Leave dispatcher out."
            )
        refusals = parcels.refusals(self.spec)
        if refusals:
            raise ConfigurationError(_listed(f"dispatcher {place!r}", refusals))
        backends.load(options.backend).portable(self.spec, options)


def _listed(place: str, problems: Sequence[str]) -> str:
    if len(problems) == 1:
        return f"{place}: {problems[0]}"
    return "\n".join([f"{place}: the job cannot be started:", *(f"- {p}" for p in problems)])


def _code_on_s3(settings: Settings) -> request_builder.Code | None:
    """Return the code of a job on SageMaker if ``source_dir`` is an archive on S3. Return None otherwise."""
    location = settings.source_dir
    if not settings.capabilities.managed or location is None or not location.startswith("s3://"):
        return None
    if callable(settings.entry_point):
        raise ConfigurationError(f"source_dir={location!r}: a function as entry_point needs a local source_dir.")
    if settings.entry_point is None:
        raise ConfigurationError(f"entry_point is missing: name the script in source_dir={location!r}.")
    if settings.dependencies:
        raise ConfigurationError(
            f"dependencies cannot be added to source_dir={location!r}. Put the dependencies into that archive."
        )
    if not location.endswith((".tar.gz", ".tgz")):
        raise ConfigurationError(
            f"source_dir={location!r}: code on S3 must be an archive, such as s3://bucket/sourcedir.tar.gz."
        )
    return request_builder.Code(program=settings.entry_point, submit_directory=location)


def _source(
    settings: Settings, channels: Collection[str], tuned: Mapping[str, Sequence[Any]], added: Collection[str]
) -> Source | None:
    if callable(settings.entry_point):
        from estimators.client.functions import packing

        if not settings.capabilities.this_python:
            packing.check_image(settings.entry_point, settings.image_uri)
        packed = packing.pack(
            settings.entry_point,
            hyperparameters=settings.hyperparameters,
            channels=channels,
            later=tuned,
            added=added,
            limit=settings.capture_limit,
        )
        without = (jobs_folder().parent,)
        return resolve_function(packed, settings.source_dir, settings.dependencies, without=without)
    if _code_on_s3(settings) is not None:
        return None
    hosts = settings.capabilities
    brings_code = settings.image_uri is not None and hosts.containers
    needs_code = not hosts.managed and not hosts.simulated and not brings_code
    if settings.entry_point is None and settings.source_dir is None and not needs_code:
        return None
    return resolve(settings.entry_point, settings.source_dir, settings.dependencies, without=(jobs_folder().parent,))
