"""A job before it is started: built from an estimator's settings, checked, planned."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from container import launchers
from estimators import backends, checks, planning, rendering, validation
from estimators.errors import UnsupportedError
from estimators.inputs import parse_inputs
from estimators.jobs.record import jobs_folder
from estimators.preflight import preflight
from estimators.settings import Settings
from estimators.source import Source, resolve
from estimators.spec import RunOptions, TrainingJobSpec

#: Starts nothing that a machine would have to be warned of.
_FAKE = "local_fake"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Draft:
    """A job that could be started.

    Attributes:
        spec: The job; SageMaker's own rules have been checked.
        settings: What the estimator was told.
        source: The user's code; None when the image brings its own.
    """

    spec: TrainingJobSpec
    settings: Settings
    source: Source | None

    @classmethod
    def make(
        cls,
        settings: Settings,
        inputs: Any,
        *,
        name: str,
        passes_model_dir: bool,
        experiment: Mapping[str, str] | None = None,
    ) -> Draft:
        """Build a job.

        Args:
            settings: What the estimator was told.
            inputs: The ``inputs`` of ``fit()``.
            name: The job's name.
            passes_model_dir: Whether the script is passed ``--model_dir``.
            experiment: SageMaker's ``ExperimentConfig``.

        Raises:
            ConfigurationError: something is wrong with it.
            UnsupportedError: something cannot be had.
        """
        if experiment and settings.is_local:
            raise UnsupportedError("experiment_config: SageMaker Experiments is a service of AWS.")
        source = _source(settings)
        code = None
        if source is not None:
            code = rendering.Code(program=source.program, submit_directory=rendering.submit_directory(settings, name))
        spec = rendering.build_spec(
            settings,
            name=name,
            channels=parse_inputs(inputs),
            code=code,
            passes_model_dir=passes_model_dir,
            experiment=dict(experiment) if experiment else None,
        )
        validation.check_spec(spec)
        return cls(spec=spec, settings=settings, source=source)

    @functools.cached_property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know before it runs."""
        found = list(self.source.warnings()) if self.source is not None else []
        if self.spec.instance_type == "local_process":
            found += checks.version_warnings(self.settings.framework_version, self.settings.py_version)
        if self.spec.instance_type != _FAKE:
            found += preflight(self.spec, self.settings.run_options)
        return tuple(found)

    @property
    def options(self) -> RunOptions:
        """How it is run."""
        return rendering.build_options(self.settings, self.warnings)

    def plan(self) -> planning.ClusterPlan:
        """What would be started, as data."""
        options = rendering.build_options(self.settings)
        return planning.plan_cluster(self.spec, options, source=self.source, warnings=self.warnings)

    def check(self) -> None:
        """Refuse what cannot run here, before anything is claimed or started.

        Raises:
            ConfigurationError: a channel, an output or an option of the strategy is wrong.
            UnsupportedError: the backend or the strategy cannot do something, or this version does not have it.
        """
        instance_type = self.spec.instance_type
        if instance_type.startswith("ml."):
            raise UnsupportedError(
                f"instance_type {instance_type!r}: launching there comes with the SageMaker backend, which this "
                "version does not have yet. 'local_process' runs the same job here, and plan() shows this one."
            )
        options = rendering.build_options(self.settings)
        backend = backends.load(options.backend)
        checks.check_local(self.spec)
        backend.check(self.spec, options)
        if instance_type == _FAKE:
            return
        try:
            launchers.load(launchers.launcher_of(self.spec.strategy))
        except launchers.LaunchError as error:
            raise UnsupportedError(f"distribution: {error}") from None
        self.plan()
        checks.check_data(self.spec, options.python)  # the last: it asks servers


def _source(settings: Settings) -> Source | None:
    needs_code = settings.is_local and settings.instance_type != _FAKE  # images bring their own
    if settings.entry_point is None and settings.source_dir is None and not needs_code:
        return None
    return resolve(settings.entry_point, settings.source_dir, settings.dependencies, without=(jobs_folder().parent,))
