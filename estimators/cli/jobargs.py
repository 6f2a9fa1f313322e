"""Define the arguments that describe a job for ``train``, ``plan`` and ``tune``, and build the job's estimator."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
from typing import TYPE_CHECKING, Any

from container.contract import rules
from container.contract.frozen import dataclass
from container.contract.hyperparameters import decode, decode_value
from container.contract.names import unknown
from container.contract.strategies import FRAMEWORKS, ParameterServer
from estimators.cli import console, parsing
from estimators.job import fleets
from estimators.job.errors import ConfigurationError

if TYPE_CHECKING:
    from estimators.client.estimator import Estimator
    from estimators.client.jobfiles.reading import Document

#: Names of strategies on the command line -> keys of a ``distribution`` dict; "none" means no distribution.
STRATEGIES = {
    "none": "",
    "mpi": "mpi",
    "horovod": "mpi",
    "parameter_server": "parameter_server",
    "ps": "parameter_server",
    "collective_all_reduce": "multi_worker_mirrored_strategy",
    "collective": "multi_worker_mirrored_strategy",
    "multi_worker_mirrored": "multi_worker_mirrored_strategy",
    "mirrored": "mirrored",
    "elastic_horovod": "elastic_horovod",
    "elastic": "elastic_horovod",
    "torch_distributed": "torch_distributed",
    "torchrun": "torch_distributed",
    "ddp": "torch_distributed",
    "elastic_torch_distributed": "elastic_torch_distributed",
    "elastic_torch": "elastic_torch_distributed",
}

#: Arguments for which the command line adds to the values in a job file. For all other arguments, the value on the
#: command line replaces the value in the file.
_MERGED = ("hyperparameters", "environment", "inputs", "run_options")


@dataclass(frozen=True)
class DescribedJob:
    """A job that the command line or a job file describes.

    Attributes:
        estimator: The estimator.
        inputs: The value of ``inputs`` for the estimator's ``fit()``.
        document: The job description from which the estimator was built.
    """

    estimator: Estimator
    inputs: Any
    document: Document

    def located(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which error messages name the line of the job file."""
        return self.document.located()


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that describe a job to a command's parser."""
    parser.add_argument(
        "script", metavar="SCRIPT", nargs="?", help="entry point: a .py or .sh file, or a module in --source-dir"
    )
    parser.add_argument(
        "script_arguments",
        nargs="*",
        metavar="-- ARGUMENT …",
        help="arguments for the script: everything after `--` is passed unchanged, and each `--name value` is also "
        "recorded as a hyperparameter",
    )
    files = parser.add_argument_group("job files (docs/job-files.md)")
    files.add_argument(
        "-f", "--file", metavar="FILE",
        help="read the job from a YAML file (`-`: standard input); options on the command line override the file",
    )  # fmt: skip
    files.add_argument("--save", metavar="FILE", help="write the job to a new YAML file before anything starts")
    what = parser.add_argument_group("the script")
    what.add_argument(
        "--source-dir", metavar="DIR", help="folder with the script and the modules that the script imports"
    )
    parsing.repeated(what, "--dependency", "DIR", "another folder of code for the script")
    parsing.repeated(
        what, "-H", "--hyperparameters", "NAME=VALUE", "one hyperparameter as NAME=VALUE, several as a JSON object, "
        "or @FILE to read a JSON object from a file",
    )  # fmt: skip
    parsing.repeated(what, "--env", "NAME=VALUE", "environment variable for the script")
    what.add_argument(
        "--model-dir", metavar="PATH", help="pass PATH to the script as --model_dir (default: pass no --model_dir)"
    )

    where = parser.add_argument_group("strategy and hosts")
    where.add_argument(
        "-s", "--strategy", metavar="NAME", help=f"distribution strategy: one of {', '.join(STRATEGIES)}"
    )
    add_framework(where)
    where.add_argument("-n", "--hosts", type=parsing.count, metavar="N", help="number of hosts (default: 1)")
    where.add_argument("-p", "--processes", type=parsing.count, metavar="N", help="processes per host (default: 1)")
    parsing.repeated(
        where, "--option", "NAME=VALUE", "option of the strategy, such as custom_mpi_options='-x NCCL_DEBUG=INFO' or "
        "communication=ring",
    )  # fmt: skip
    where.add_argument(
        "-t", "--instance-type", metavar="TYPE",
        help=f"where the hosts come from: {fleets.kinds()} (default: {fleets.DEFAULT})",
    )  # fmt: skip
    parsing.repeated(
        where, "--backend-option", "NAME=VALUE", "option of the instance type, such as hosts='[\"node-1\", "
        "\"node-2\"]' for ssh",
    )  # fmt: skip
    parsing.add_dispatcher(
        where,
        "run the job's supervisor on HOST over ssh (docs/fleet.md) or on a Ray cluster (docs/ray.md). The supervisor "
        "manages the job, which then continues when this machine is switched off",
    )
    where.add_argument("--image", metavar="URI", help="container image of the job")
    where.add_argument("--role", metavar="ARN", help="IAM role, for ml.* types")

    data = parser.add_argument_group("data and results")
    parsing.repeated(
        data, "-i", "--input", "[CHANNEL=]PATH", "input channel: its name (default: training) and the path or URI of "
        "its data",
    )  # fmt: skip
    data.add_argument("--input-mode", metavar="MODE", help="File, Pipe or FastFile (default: File)")
    data.add_argument("-o", "--output-path", metavar="PATH", help="folder or S3 URI for the model and the outputs")
    data.add_argument("--checkpoints", metavar="PATH", help="folder or S3 URI of the checkpoints")
    parsing.repeated(
        data, "-m", "--metric", "NAME=REGEX", "read a metric from the logs: the first group of the regular "
        "expression is the value",
    )  # fmt: skip

    run = parser.add_argument_group("the run")
    names = run.add_mutually_exclusive_group()
    names.add_argument("--name", metavar="NAME", help="the job's name (default: made from the script and the time)")
    names.add_argument("--base-name", metavar="NAME", help="prefix of the job's name")
    run.add_argument(
        "--max-run", type=parsing.duration, metavar="TIME",
        help="stop the job after this time, such as 90 (seconds), 15m or 2h",
    )  # fmt: skip
    run.add_argument(
        "--hang-timeout",
        type=parsing.duration,
        metavar="TIME",
        help="if no rank makes progress for this time, show the stack of every rank and fail the job",
    )
    run.add_argument(
        "--on-undistributed", choices=("warn", "fail"),
        help="what to do if the ranks never connect, or connect but exchange nothing (default: warn)",
    )  # fmt: skip
    run.add_argument(
        "--on-nan", choices=("warn", "fail"), help="what to do if a metric is NaN or a loss is infinite (default: warn)"
    )
    run.add_argument(
        "--stop-grace",
        type=parsing.whole,
        metavar="S",
        help="when the job is stopped, give the script S seconds to save its state (default: 120)",
    )

    failures = parser.add_argument_group("when hosts or ranks fail (docs/failures.md)")
    failures.add_argument(
        "--max-retry-attempts", type=parsing.count, metavar="N",
        help="restart the job after failures, up to N times (1 to 30)",
    )  # fmt: skip
    parsing.repeated(
        failures, "--failure-policy", "NAME=VALUE", "option of the failure policy, such as min_hosts=1 or "
        "max_preemptions=3",
    )  # fmt: skip
    failures.add_argument("--spot", action="store_true", help="use spot instances, which can be interrupted")
    failures.add_argument(
        "--max-wait",
        type=parsing.duration,
        metavar="TIME",
        help="stop the job after this time, which includes the time in which the job waits for hosts",
    )
    parsing.repeated(
        failures, "--spot-market", "NAME=VALUE", "with --spot, option of the simulated spot market: rate=6 interrupts "
        "each host 6 times per hour on average, notice_s=10 gives 10 s of notice, and trace='[[20, \"algo-2\"]]' "
        "interrupts algo-2 after 20 s",
    )  # fmt: skip
    parsing.repeated(
        failures, "--fault", "FAULT", "inject a fault, such as `kill:rank=1,at_step=50`, "
        "`remove_host:host=algo-2,at_s=20` or `interrupt:host=algo-2,notice_s=10,at_line=REGEX`",
    )  # fmt: skip
    turns = parser.add_argument_group("queue")
    turns.add_argument("--queue", metavar="NAME", help="wait in this queue until the machine has room for the job")
    turns.add_argument(
        "--priority",
        type=parsing.integer,
        metavar="N",
        help="priority in the queue; higher priorities start first (default: 0)",
    )
    turns.add_argument(
        "--preemptible", action="store_true",
        help="interrupt this job if a job with a higher priority needs the resources; this job continues afterwards",
    )  # fmt: skip
    parsing.repeated(
        turns, "--needs", "NAME=VALUE", "resource that the job needs: cores, gpus or memory_gb (default: one core "
        "for each rank, and all GPUs)",
    )  # fmt: skip


def add_framework(parser: Any) -> None:
    """Add the option ``--framework`` to a parser."""
    parser.add_argument(
        "--framework", choices=tuple(FRAMEWORKS), help="framework of the script (default: inferred from the strategy)"
    )


def job_of(args: argparse.Namespace, **forced: Any) -> DescribedJob:
    """Return the job that the command line describes. The command line can name a job file.

    Args:
        args: The arguments, which override the values of the job file.
        **forced: Values that override the arguments and the job file.

    Raises:
        ConfigurationError: a value is wrong. If the value is in a file, the message names the line.
    """
    from estimators.client.jobfiles import building, reading

    if args.file is None and args.script is None:
        raise ConfigurationError("SCRIPT is missing: name the entry point, or a job file with -f.")
    if args.file is not None:
        document = reading.read(args.file)
        building.check_names(document)
        building.make_paths_absolute(document)
    else:
        document = reading.Document({})
    for name, value in {**_given(args, document.values), **forced}.items():
        document.override(name, value, merged=name in _MERGED)
    entry_point = document.values.get("entry_point")
    if not document.values.get("base_job_name") and isinstance(entry_point, str):
        document.values["base_job_name"] = _base_name(entry_point)
    estimator, inputs = building.build(document)
    job = DescribedJob(estimator, inputs, document)
    if args.save is not None:
        _save(args.save, job)
    return job


def _save(path: str, job: DescribedJob) -> None:
    from estimators.client.jobfiles import writing

    values = {name: value for name, value in job.document.values.items() if value is not None or name == "model_dir"}
    if values.get("model_dir") is False:
        del values["model_dir"]
    for variable in writing.save(path, {name: value for name, value in values.items() if value != {}}):
        console.say(f"{path}: a value looks like a secret, so the file has ${{env:{variable}}} in place of the value.")


def _given(args: argparse.Namespace, before: dict[str, Any]) -> dict[str, Any]:
    """Return the values that the command line sets, with the names and types that job files use.

    Args:
        args: The parsed command line.
        before: The values of the job file. Empty without a job file.
    """
    values: dict[str, Any] = {
        "framework": args.framework,
        "source_dir": args.source_dir,
        "dependencies": args.dependency or None,
        "hyperparameters": parsing.hyperparameters(args.hyperparameters, args.script_arguments) or None,
        "arguments": _arguments(args, before),
        "environment": parsing.pairs("--env", args.env) or None,
        "model_dir": args.model_dir,
        "instance_count": args.hosts,
        "instance_type": args.instance_type,
        "image_uri": args.image,
        "role": args.role,
        "inputs": parsing.inputs(args.input),
        "input_mode": args.input_mode,
        "output_path": args.output_path,
        "checkpoint_s3_uri": args.checkpoints,
        "metric_definitions": [
            {"Name": name, "Regex": regex}
            for name, regex in parsing.pairs("--metric", args.metric, "NAME=REGEX").items()
        ],
        "base_job_name": args.base_name,
        "max_run": args.max_run,
        "hang_timeout": args.hang_timeout,
        "max_retry_attempts": args.max_retry_attempts,
        "use_spot_instances": args.spot or None,
        "max_wait": args.max_wait,
        "run_options": _run_options(args),
    }
    given = {name: value for name, value in values.items() if value not in (None, [], {})}
    if args.script is not None:
        given["entry_point"] = _entry_point(args.script, args.source_dir or before.get("source_dir"))
    if args.strategy is not None or args.processes is not None or args.option:
        given["distribution"] = distribution(
            "none" if args.strategy is None else args.strategy, args.processes, args.option
        )
        if args.strategy is None and given["distribution"] is None:
            del given["distribution"]  # --processes 1 is the default
    return given


def _arguments(args: argparse.Namespace, before: dict[str, Any]) -> list[str] | None:
    """Return the script's arguments. The arguments of the job file are first, followed by the arguments after ``--``.

    Return None if the command line sets no arguments. Also return None if all arguments are hyperparameters, and the
    image's own program runs instead of a script: such a program receives only hyperparameters.

    Args:
        args: The parsed command line.
        before: The values of the job file. Empty without a job file.
    """
    words = args.script_arguments
    known = before.get("arguments") or []
    options = (before.get("run_options") or {}).get("backend_options") or {}
    chosen = {**options, **values("--backend-option", args.backend_option)}.get("toolkit")
    has_script = args.script is not None or before.get("entry_point") is not None
    others = parsing.are_pairs(words) and (not has_script or chosen == "image")
    if not words or others or not isinstance(known, list):
        return None
    return [*known, *words]


def _run_options(args: argparse.Namespace) -> dict[str, Any]:
    from estimators.job import faults

    given: dict[str, Any] = {}
    if args.stop_grace is not None:
        given["stop_grace"] = float(args.stop_grace)
    for name in ("on_undistributed", "on_nan", "queue", "priority"):
        if getattr(args, name) is not None:
            given[name] = getattr(args, name)
    if args.dispatcher is not None or args.dispatcher_option:
        given["dispatcher_options"] = parsing.dispatcher_options(args)
        given["dispatcher"] = args.dispatcher
    for option, name in (
        ("backend_option", "backend_options"), ("failure_policy", "failure_policy"), ("spot_market", "spot_market"),
        ("needs", "needs"),
    ):  # fmt: skip
        if found := getattr(args, option):
            given[name] = values(f"--{option.replace('_', '-')}", found)
    if args.preemptible:
        given["preemptible"] = True
    if args.fault:
        given["faults"] = [rules.to_dict(faults.parse(text)) for text in args.fault]
    return given


def values(option: str, texts: list[str]) -> dict[str, Any]:
    """Parse ``NAME=VALUE`` pairs.

    A value that is valid JSON is decoded. The value ``none`` becomes None. Any other value remains a text.
    """
    given = parsing.pairs(option, texts)
    return {name: None if text.lower() == "none" else decode_value(text) for name, text in given.items()}


def distribution(strategy: str, processes: int | None, options: list[str]) -> dict[str, dict[str, Any]] | None:
    """Return the ``distribution`` dict for a strategy's name and options, or None for the strategy ``none``.

    Raises:
        ConfigurationError: the strategy is unknown, the strategy does not accept ``processes`` or an option, or
            ``processes`` and an option contradict each other.
    """
    name = strategy.lower().replace("-", "_")
    if name not in STRATEGIES:
        raise ConfigurationError(unknown("strategy", strategy, STRATEGIES))
    values = decode(parsing.pairs("--option", options))
    if STRATEGIES[name] == "mirrored" and processes not in (None, 1):
        raise ConfigurationError(
            "--processes is not available for mirrored, which runs one process for all devices of a host. Set the "
            "devices with --option devices=…."
        )
    if processes is not None and STRATEGIES[name] != "mirrored":
        each = values.setdefault("processes_per_host", processes)
        if each != processes:
            raise ConfigurationError(
                f"--processes {processes} and --option processes_per_host={each} contradict each other. Leave one of "
                "them out."
            )
    if not STRATEGIES[name]:
        if values and values != {"processes_per_host": 1}:
            wanted = "--processes" if "processes_per_host" in values else "--option"
            raise ConfigurationError(f"{wanted} needs a --strategy: one of {', '.join(list(STRATEGIES)[1:])}.")
        return None
    if STRATEGIES[name] == "parameter_server" and values.get("processes_per_host") is not None:
        raise ConfigurationError(
            "--processes is not available for parameter servers, which run one worker on each host. Set --hosts "
            "instead."
        )
    if STRATEGIES[name] == "parameter_server":
        values.setdefault("cluster_spec", ParameterServer().cluster_spec)  # the class's default, not SageMaker's
    return {STRATEGIES[name]: {"enabled": True, **values}}


def _base_name(script: str) -> str | None:
    """Return the prefix of the job's name, or None if the script's name has no usable characters.

    The prefix is the script's name, reduced to the characters that job names may contain.
    """
    stem = os.path.basename(script.rstrip("/")).removesuffix(".py").removesuffix(".sh")
    return re.sub(r"[^a-zA-Z0-9]+", "-", stem).strip("-")[:32].rstrip("-") or None


def _entry_point(script: str, source_dir: str | None) -> str:
    """Return the script's path relative to ``--source-dir``.

    For example, ``code/train.py`` in the folder ``code`` becomes ``train.py``. Such a path is common, because tab
    completion inserts the folder's name.
    """
    if source_dir is None or os.path.exists(os.path.join(source_dir, script)):
        return script
    below = os.path.relpath(os.path.abspath(script), os.path.abspath(source_dir))
    return below if os.path.exists(script) and not below.startswith("..") else script
