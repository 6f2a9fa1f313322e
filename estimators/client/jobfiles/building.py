"""Build an estimator and its inputs from a job file, the YAML description of a job. Error messages name the line."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from container.contract import rules
from container.contract.names import shown, unknown
from container.contract.strategies import FRAMEWORKS, parse_distribution
from estimators.client.jobfiles.reading import Document
from estimators.job.arguments import ARGUMENTS, Treatment, asks_for_nothing
from estimators.job.errors import ConfigurationError
from estimators.job.inputs import FileSystemInput, ShuffleConfig, TrainingInput
from estimators.job.request import RunOptions
from estimators.job.secrets import mask_value

if TYPE_CHECKING:
    from estimators.client.estimator import Estimator

#: Keys that a job file may contain in addition to the estimator's arguments.
OWN_KEYS = ("framework", "inputs")
#: Arguments of estimators that a job file cannot contain -> the alternative, for the error message.
_NOT_IN_FILES = {
    "sagemaker_session": "set the region and the profile with AWS_REGION and AWS_PROFILE",
    "capture_limit": "the entry point of a job file is a script, not a function",
}
#: Arguments whose value is a path or a URI.
PATHS = ("source_dir", "output_path", "checkpoint_s3_uri", "model_uri")


def argument_names() -> list[str]:
    """Return the names of the arguments that a job file may contain, in the order of the documentation."""
    taken = [item.name for item in ARGUMENTS if item.treatment is not Treatment.REFUSED]
    return [name for name in taken if name not in _NOT_IN_FILES]


def option_names() -> list[str]:
    """Return the names of the run options that a job file may contain."""
    return [field.name for field in dataclasses.fields(RunOptions)]


def check_names(document: Document) -> None:
    """Check that every argument and run option of a job file is allowed in job files.

    Raises:
        ConfigurationError: a name is unknown, or job files cannot contain this argument.
    """
    by_name = {item.name: item for item in ARGUMENTS}
    known = [*OWN_KEYS, *argument_names()]
    for name, value in document.values.items():
        place = document.place((name,))
        argument = by_name.get(name)
        if name in _NOT_IN_FILES:
            raise ConfigurationError(f"{place}{name} is not available in job files: {_NOT_IN_FILES[name]}.")
        if argument is not None and argument.treatment is Treatment.REFUSED and not asks_for_nothing(argument, value):
            raise ConfigurationError(f"{place}{name}={shown(mask_value(name, value))} is refused: {argument.note}.")
        if argument is None and name not in OWN_KEYS:
            former = next((item.name for item in ARGUMENTS if item.v1_name == name), None)
            if former is not None:
                raise ConfigurationError(f"{place}{name} is a name of the SageMaker SDK 1.x. Use {former}.")
            raise ConfigurationError(place + unknown("argument", name, known))
    for name in _options_given(document):
        if name not in option_names():
            raise ConfigurationError(
                document.place(("run_options", name)) + unknown("run option", name, option_names())
            )


def _options_given(document: Document) -> Mapping[str, Any]:
    options = document.values.get("run_options") or {}
    if not isinstance(options, Mapping):
        raise ConfigurationError(
            f"{document.place(('run_options',))}run_options must be a mapping of names to values, got {shown(options)}."
        )
    return options


def make_paths_absolute(document: Document) -> None:
    """Convert the paths in a job file to absolute paths. Relative paths refer to the folder of the job file."""
    values, folder = document.values, document.folder
    for holder, key in places_of_paths(values):
        holder[key] = _below(folder, holder[key])
    entry = values.get("entry_point")
    if isinstance(entry, str) and not values.get("source_dir"):
        in_a_file = entry.endswith((".py", ".sh")) or os.sep in entry or os.path.exists(os.path.join(folder, entry))
        values["entry_point"] = _below(folder, entry) if in_a_file else entry


def places_of_paths(values: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the place of each path in the arguments of a job file. The caller can replace the path in this place.

    The entry point is omitted.

    Yields:
        A mapping or a list, and the key or index of the path in the mapping or list.
    """
    yield from ((values, name) for name in (*PATHS, "inputs") if name in values)
    dependencies, inputs = values.get("dependencies"), values.get("inputs")
    if isinstance(dependencies, list):
        yield from ((dependencies, place) for place in range(len(dependencies)))
    for name, value in inputs.items() if isinstance(inputs, dict) else ():
        yield (value, "s3_data") if isinstance(value, dict) and "s3_data" in value else (inputs, name)


def _below(folder: Any, location: Any) -> Any:
    if not isinstance(location, str) or not location or "://" in location or location.startswith("~"):
        return location
    return os.path.normpath(os.path.join(folder, location))


def build(document: Document) -> tuple[Estimator, Any]:
    """Return the estimator that a job file describes, and the value of ``inputs`` for the estimator's ``fit()``.

    Raises:
        ConfigurationError: a value is wrong. If the value comes from a file, the message names the line.
    """
    check_names(document)
    values = dict(document.values)
    with document.located():
        options = _options_given(document)
        inputs = _inputs(document, values.pop("inputs", None))
        framework = values.pop("framework", None)
        if framework is not None and framework not in FRAMEWORKS:
            raise ConfigurationError(unknown("framework", framework, FRAMEWORKS))
        # By default, the SageMaker SDK's class passes --model_dir to the script. The command line and job files pass it
        # only if the user sets model_dir, because many scripts do not accept the argument.
        model_dir = values.pop("model_dir", False)
        given = {name: value for name, value in values.items() if value is not None}
        if options:
            given["run_options"] = rules.from_dict(RunOptions, options, "run option")
        try:
            return estimator_for(framework, given, model_dir=model_dir), inputs
        except ConfigurationError as error:
            document.locate(error, _blamed(given, str(error)))
            raise


def estimator_for(framework: str | None, given: dict[str, Any], *, model_dir: str | Literal[False] | None) -> Estimator:
    """Return an estimator for a framework's scripts.

    Args:
        framework: One of :data:`~container.contract.strategies.FRAMEWORKS`. With None, the strategy's first framework
            is used, or ``tensorflow`` without a strategy.
        given: The estimator's arguments.
        model_dir: The script's ``--model_dir``. With False, the script receives no ``--model_dir``. With None, the
            default of :class:`estimators.TensorFlow` is used.

    Raises:
        ConfigurationError: an argument is wrong.
    """
    from estimators.client import estimator

    strategy = parse_distribution(given.get("distribution"))
    framework = framework or (strategy.frameworks[0] if strategy is not None else "tensorflow")
    if framework == "tensorflow":
        return estimator.TensorFlow(**given, model_dir=model_dir)
    if model_dir is not False:
        raise ConfigurationError(
            "model_dir is for TensorFlow scripts only. Other scripts find the folder in SM_MODEL_DIR."
        )
    return estimator.PyTorch(**given)


def _blamed(given: Mapping[str, Any], message: str) -> tuple[str, ...]:
    """Return the path of the argument that causes an error message, or an empty tuple if the argument cannot be found.

    To find the argument, an estimator is created with each argument alone. The argument that raises the same message is
    returned.
    """
    for name, value in given.items():
        try:
            estimator_for(None, {name: value}, model_dir=False)
        except ConfigurationError as error:
            if str(error) == message:
                return (name,)
    return ()


def _inputs(document: Document, given: Any) -> Any:
    if given is None or isinstance(given, str):
        return given
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"inputs must be a path, or a mapping of channels to paths; got {shown(given)}.")
    return {name: _channel(document, name, value) for name, value in given.items()}


def _channel(document: Document, name: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        if not isinstance(value, str):
            place = document.place(("inputs", name))
            raise ConfigurationError(f"{place}inputs: channel {name!r} must be a path or a URI; got {shown(value)}.")
        return value
    given = dict(value)
    kind = FileSystemInput if "file_system_id" in given else TrainingInput
    known = CHANNEL_OPTIONS[kind.__name__]
    for option in given:
        if option not in known:
            place = document.place(("inputs", name, option))
            raise ConfigurationError(place + unknown(f"option of channel {name!r}", option, known))
    missing = next((option for option in known[: _REQUIRED[kind.__name__]] if option not in given), None)
    if missing is not None:
        raise ConfigurationError(f"{document.place(('inputs', name))}inputs: channel {name!r} has no {missing}.")
    if "shuffle_config" in given:
        seed = given["shuffle_config"]
        if not isinstance(seed, Mapping) or set(seed) != {"seed"}:
            place = document.place(("inputs", name, "shuffle_config"))
            raise ConfigurationError(f"{place}shuffle_config must be a mapping such as {{seed: 7}}, got {shown(seed)}.")
        given["shuffle_config"] = ShuffleConfig(seed["seed"])
    return kind(**given)


#: Class of a channel -> the keys of a mapping that describes such a channel in a job file. The keys are the names of
#: the class's arguments.
CHANNEL_OPTIONS = {
    kind.__name__: tuple(name for name in inspect.signature(kind).parameters if name != "target_attribute_name")
    for kind in (TrainingInput, FileSystemInput)
}
_REQUIRED = {"TrainingInput": 1, "FileSystemInput": 3}
