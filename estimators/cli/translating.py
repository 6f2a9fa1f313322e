"""Translate messages of the Python interface for the command line: replace the names of arguments by options."""

from __future__ import annotations

import ast
import functools
import json
import re
import shlex
from collections.abc import Collection, Mapping

#: Arguments of the Python interface, as messages name them -> equivalent options of the command line.
_OPTIONS = {
    "backend_options": "--backend-option", "base_job_name": "--base-name", "faults": "--fault",
    "checkpoint_s3_uri": "--checkpoints", "dependencies": "--dependency", "dispatcher": "--dispatcher",
    "dispatcher_options": "--dispatcher-option", "distribution": "--strategy", "entry_point": "SCRIPT",
    "environment": "--env", "failure_policy": "--failure-policy", "hang_timeout": "--hang-timeout",
    "hosts": "--hosts", "hyperparameters": "--hyperparameters", "image_uri": "--image", "input_mode": "--input-mode",
    "instance_count": "--hosts", "instance_type": "--instance-type", "job_name": "--name", "max_retry_attempts":
    "--max-retry-attempts", "max_run": "--max-run", "max_wait": "--max-wait", "metric_definitions": "--metric",
    "model_dir": "--model-dir", "needs": "--needs", "on_nan": "--on-nan", "on_undistributed": "--on-undistributed",
    "output_path": "--output-path", "preemptible": "--preemptible", "priority": "--priority",
    "processes_per_host": "--processes", "queue": "--queue", "role": "--role", "source_dir": "--source-dir",
    "spot_market": "--spot-market", "stop_grace": "--stop-grace", "use_spot_instances": "--spot",
}  # fmt: skip
#: Options of other tools -> options of fleetfit with the same meaning.
_ELSEWHERE = {
    "instances": "--hosts", "nnodes": "--hosts", "nodes": "--hosts", "workers": "--hosts", "np": "--processes",
    "nproc": "--processes", "nproc_per_node": "--processes", "num_proc": "--processes", "output": "--output-path",
}  # fmt: skip
#: Strategy classes of the Python interface -> names for --strategy.
_CLASSES = {
    "MPI": "mpi", "CollectiveAllReduce": "collective_all_reduce", "ParameterServer": "parameter_server",
    "Mirrored": "mirrored", "TorchDistributed": "torch_distributed", "ElasticHorovod": "elastic_horovod",
    "ElasticTorchDistributed": "elastic_torch_distributed",
}  # fmt: skip
#: Other classes of the Python interface -> options that take their arguments as NAME=VALUE.
_NAMED = {"FailurePolicy": "--failure-policy", "SpotMarket": "--spot-market"}
#: Classes of faults -> their names for --fault.
_FAULTS = {"Kill": "kill", "RemoveHost": "remove_host", "Interrupt": "interrupt"}
_ANY_CLASS = "|".join([*_CLASSES, *_NAMED, *_FAULTS])

#: Arguments without an equivalent option: those of a channel, and `model_dir=False`.
_NOT_OPTIONS = re.compile(r"distribution='(?:FullyReplicated|ShardedByS3Key)'|model_dir=False")
_CALL = re.compile(r"\b(?:RunOptions|fit|plan|simulate|compare)\((\w+=[^()]*)\)")
_CLASS_CALL = re.compile(
    rf"(?:fault: )?(RunOptions\(\w+=)?(fit\(faults=\[)?\b({_ANY_CLASS})\(([^()]*)\)(?(2)\]\))(?(1)\))"
)
#: A range of the Python interface, which ``--range`` writes as ``LOW:HIGH``.
_RANGE = re.compile(r"\b(?:Integer|Continuous)Parameter\(([^,()]+), ([^,()]+)[^()]*\)")
#: Matches the words with which messages refer to an argument of a class, or to a key of a ``distribution`` dict.
_OPTION_OF = re.compile(rf"\boption of (?:({_ANY_CLASS})(?= )|distribution '\w+':)")
#: Advice that is only for the Python interface.
_IN_PYTHON = re.compile(r" In Python, you can also .*$")
#: Other texts -> their form on the command line.
_TEXTS = {
    "framework_version and py_version": "framework_version and py_version in a job file (-f)",
    "'multi_worker_mirrored_strategy'": "'collective_all_reduce'",
    "simulate() ": "`fleetfit simulate` ",
    "NotifyCallback(command=…)": "--notify",
    "NotifyCallback(url=…)": "--notify",
    "TensorBoardCallback(folder=…)": "--track",
}


def in_options(message: str, more: Mapping[str, str] | None = None) -> str:
    """Replace argument names of the Python interface in a message by options of the command line.

    For example, ``instance_count=2`` becomes ``--hosts 2``. Only the first line of the message and the items of a list
    are changed, because other lines may contain the user's code.

    Args:
        message: The message.
        more: Other arguments of the command, with their options.
    """
    options = {**_OPTIONS, **(more or {})}
    first, *rest = message.split("\n")
    return "\n".join([_line(first, options), *(_line(one, options) if one[:2] == "- " else one for one in rest)])


def equivalent(option: str, known: Collection[str]) -> str | None:
    """Return the option that corresponds to a name of the Python interface or of another tool, or None.

    For example, ``--hosts`` is returned for ``--instance-count``.

    Args:
        option: The name, with its hyphens.
        known: The options of the command.
    """
    name = option.lstrip("-").replace("-", "_")
    found = _OPTIONS.get(name) or _ELSEWHERE.get(name)
    return found if found is not None and found in known else None


@functools.lru_cache
def _argument(names: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern that finds arguments with the given names in a message, with or without a value.

    The pattern has six groups: the name, ``=True``, the key and the value of a dict with one item, the ``=`` before any
    other value, and the ``=`` or ``=…`` of an argument without a value.
    """
    return re.compile(
        rf"(?<![\w'\"`/.-])({'|'.join(names)})"
        r"(?:(=True\b)|=\{'([\w-]+)': ([^{}]*)\}|(=)(?=[^\s={…,.)])|(=…|=(?=[,.) ]))|(?=:)|(?![\w'\"`/=-]|\.\w))"
    )


def _line(line: str, options: Mapping[str, str]) -> str:

    def option(match: re.Match[str]) -> str:
        name, true, key, item, value, unset = match.groups()
        before = line[: match.start()]
        word = not (true or key or value or unset or "_" in name or match.start() == 0)
        in_call = before.rfind("(") > before.rfind(")") and re.search(r"\w\([^()]*$", before)
        if word or in_call or _NOT_OPTIONS.match(line, match.start()):
            return match[0]
        return options[name] + (f" {key}={_quoted(item)}" if key else " " if value else "")

    if "--" in line:  # the message already names options
        return _RANGE.sub(r"\1:\2", line)
    line = _IN_PYTHON.sub("", line)
    for text, instead in _TEXTS.items():
        line = line.replace(text, instead)
    line = _OPTION_OF.sub(lambda found: f"name in {_option_of(found[1])}", line)
    line = _CALL.sub(r"\1", _CLASS_CALL.sub(_class, line))
    return _argument(tuple(options)).sub(option, line)


def _option_of(name: str | None) -> str:
    """Return the option that takes the arguments of a class."""
    return "--fault" if name in _FAULTS else _NAMED.get(name or "", "--option")


def _class(match: re.Match[str]) -> str:
    """Return the options of the command line for a strategy, a policy, a spot market or a fault that a message names.

    ``MPI(processes_per_host=2)`` becomes ``--strategy mpi processes_per_host=2``. ``MPI(processes_per_host=…)`` becomes
    ``processes_per_host``, because no value is given. Before any other arguments, the option that accepts them as
    ``NAME=VALUE`` is added.
    """
    name, arguments = match[3], match[4]
    if name in _FAULTS:
        return f"--fault {_FAULTS[name]}:{arguments.replace(', ', ',')}"
    if name in _CLASSES:
        if arguments.startswith("processes_per_host=") and "," not in arguments:
            unset = arguments.endswith("=…")
            return arguments.removesuffix("=…") if unset else f"--strategy {_CLASSES[name]} {arguments}"
        if not arguments:
            return f"--strategy {_CLASSES[name]}"
    option = _option_of(name)
    return f"{option} {arguments}" if "=" in arguments else option


def _quoted(value: str) -> str:
    """Return a list as an argument for a shell. Return any other value unchanged."""
    if value[:1] != "[":
        return value
    try:
        return shlex.quote(json.dumps(ast.literal_eval(value)))
    except (ValueError, SyntaxError, TypeError):
        return value
