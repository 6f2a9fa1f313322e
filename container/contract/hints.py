"""Find hints that help the user to fix a failure. The hints depend on the failed process's output and on facts about
the job.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import signal
from collections.abc import Mapping

from container.contract.environment import Environment
from container.contract.frozen import dataclass
from container.contract.layout import DEFAULT_BASE_DIR, FUNCTION_FOLDER
from container.contract.names import cut, nearest

_LEGACY = "TF_USE_LEGACY_KERAS"

#: Maximum number of hints from a process's output.
_MOST = 2


@dataclass(frozen=True, kw_only=True)
class Situation:
    """The facts about a job that determine which hints are given, and the text of these hints.

    Attributes:
        channels: Names of the job's channels.
        strategy: Name of the job's strategy. None if the job is not distributed.
        environment: The environment variables that the user set.
        base_dir: The root of the host's file tree, which is ``/opt/ml`` in a container.
        elsewhere: Whether the host is a different machine than the machine on which the user started the job.
        code: The folder of the script.
        ours: Files and folders with fleetfit's own Python code. Frames of this code are omitted from tracebacks.
    """

    channels: tuple[str, ...] = ()
    strategy: str | None = None
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    base_dir: str = DEFAULT_BASE_DIR
    elsewhere: bool = False
    code: str = ""
    ours: tuple[str, ...] = ()

    @classmethod
    def of(cls, environment: Environment) -> Situation:
        """Return the facts about a host's job."""
        strategy, code = environment.strategy, environment.tree.code
        ours = [f"{package}/"] if (package := environment.machine.container_package) else []
        if (code / FUNCTION_FOLDER).is_dir():
            ours += [str(code / environment.program), f"{code / FUNCTION_FOLDER}/"]
        return cls(
            channels=tuple(sorted(environment.input_data_config)),
            strategy=strategy.name if strategy is not None else None,
            environment=environment.user_environment,
            base_dir=str(environment.tree.base),
            elsewhere=not environment.machine.shared and str(environment.tree.base) != DEFAULT_BASE_DIR,
            code=str(code),
            ours=tuple(ours),
        )


#: Hint for scripts that contain paths below ``/opt/ml``.
OWN_PATHS = (
    "Outside of containers, a host has no /opt/ml of its own. Take the folders from SM_MODEL_DIR, SM_CHECKPOINT_DIR, "
    "SM_OUTPUT_DATA_DIR and SM_CHANNEL_…. In hyperparameters and environment=, fleetfit replaces paths below /opt/ml "
    "by paths below the host's folder."
)

#: Pattern in a Python exception -> hint.
_RAISED: tuple[tuple[str, str], ...] = (
    (
        r"module 'horovod\.torch' has no attribute|Extension horovod\.torch has not been built",
        "Horovod was built without PyTorch: `fleetfit install horovod torch` builds Horovod for PyTorch, "
        "`fleetfit install horovod tensorflow torch` builds it for TensorFlow and PyTorch.",
    ),
    (
        r"ProcessGroupNCCL is only supported with GPUs|doesn't have NCCL built in",
        "NCCL needs GPUs and a PyTorch that was built for GPUs. Without them, use "
        "init_process_group(backend='gloo'), or container.distributed, which chooses the backend.",
    ),
    (
        r"No module named 'encodings'",
        "Python does not find its own files: PYTHONHOME or PYTHONPATH is wrong in the job's environment.",
    ),
)

#: Pattern anywhere in the last lines of the output -> hint.
_SAID: tuple[tuple[str, str], ...] = (
    (
        r"(?:host|hostname|addresses of|for) [('\"]?algo-\d+\b[^\n]{0,80}"
        r"(?:not known|gai error|name resolution|cannot be retrieved)"
        r"|(?:resolve|resolution)[^\n]{0,30} (?:host|hostname|for) ['\"]?algo-\d+\b",
        "host names such as algo-1 resolve only on SageMaker and between containers. Elsewhere, use the address of the "
        "first host, FLEETFIT_MASTER_ADDR, for `torchrun --master_addr` and similar options.",
    ),
    (
        r"ResourceExhaustedError|OOM when allocating",
        "the device ran out of memory: use a smaller batch size, or fewer processes per host.",
    ),
    (
        r"Address already in use",
        "another program holds the port: let the system choose a free port (port 0), or end that program.",
    ),
    (
        r"gloo/transport/[^\n]*Connection closed by peer",
        "another rank closed its connection to this rank. If no other rank has failed, that rank has ended earlier "
        "than this one: all ranks must make the same number of steps, and take part in the same collective operations.",
    ),
)

#: Errors of Keras 2 scripts under Keras 3. The first is from Horovod's documented example; the last two are from
#: TensorFlow's tutorial on MultiWorkerMirroredStrategy.
_KERAS_2 = (
    r"unexpected keyword argument 'experimental_run_tf_function'",
    r"(?s:(?:horovod/_keras|keras/src)/.*)'\w+' object has no attribute 'lr'",
    r"'Variable' object has no attribute 'ref'",
    r"unsupported type \(<class 'tensorflow\.python\.distribute\.values\.PerReplica'>\)",
    r"Invalid filepath extension for saving|The filepath provided must end in `\.keras`",
)

_SIGNALS = {
    signal.SIGKILL: (
        "SIGKILL comes from the kernel when memory runs out (see `dmesg`) or the CPU time is used up (`ulimit -t`), or "
        "from a `kill -9`. "
        "Fewer processes per host or a smaller batch size need less memory."
    ),
    signal.SIGSEGV: (
        "SIGSEGV is a crash in native code. Often two libraries do not fit together: for example, Horovod was built "
        "for a different version of TensorFlow or MPI. `fleetfit doctor --deep` checks this."
    ),
    signal.SIGILL: "SIGILL: the program was built for a different processor.",
    signal.SIGBUS: "SIGBUS is often a full /dev/shm: give the container more shared memory.",
    signal.SIGABRT: "SIGABRT: native code aborted the process. The last lines of the log may tell the reason.",
}


def hints(
    text: str, killed_by: int | None = None, *, traceback: str | None = None, situation: Situation | None = None
) -> tuple[str, ...]:
    """Return hints that tell the user how to avoid the failure.

    Args:
        text: The end of the process's output.
        killed_by: The number of the signal that killed the process, or None.
        traceback: The traceback of the exception that ended the process, or None. If there is a traceback, exceptions
            are searched for only in the traceback, because the output may also contain exceptions that the script has
            handled.
        situation: Facts about the process's job.
    """
    raised = traceback or text
    found = _of_exception(raised, situation or Situation())
    for said in (text, raised):
        if (hint_on_arguments := _of_argparse(said)) is not None:
            found.append(hint_on_arguments)
            break
    if "No space left on device" in text or "No space left on device" in raised:
        found.append(_disk(situation or Situation()))
    for pattern, hint in _SAID:
        match = re.search(pattern, text) or re.search(pattern, raised)
        if match is not None:
            found.append(hint.format(*(cut(group.strip(), 200) for group in match.groups())))
    del found[_MOST:]
    if killed_by in _SIGNALS:
        found.append(_SIGNALS[signal.Signals(killed_by)])
    return tuple(found)


def install(module: str) -> str:
    """Return the hint for a Python module that is not installed."""
    return f"add {module} to a requirements.txt in source_dir, or install it."


def missing_module(hint: str) -> str | None:
    """Return the name of the module if the hint was created by :func:`install`. Return None for any other hint."""
    match = re.fullmatch(re.escape(install("@")).replace("@", r"([\w.]+)"), hint)
    return match[1] if match is not None else None


def _of_exception(raised: str, situation: Situation) -> list[str]:
    """Return a list with one hint for an exception. Return an empty list if fleetfit has no hint for the exception."""
    for pattern, hint in _RAISED:
        match = re.search(pattern, raised)
        if match is not None:
            return [hint.format(*match.groups())]
    match = re.search(r"No module named '(horovod|mpi4py|tensorflow|tf_keras|torch)'", raised)
    if match is not None:
        return [_not_installed(match[1], situation)]
    match = re.search(r"No module named '([\w.]+)'", raised)
    if match is not None:
        return [install(match[1])]
    match = re.search(r"^KeyError: '(SM_CHANNEL_\w+|TF_CONFIG)'", raised, re.MULTILINE)
    if match is not None:
        return [_tf_config(situation) if match[1] == "TF_CONFIG" else _channel(match[1], situation)]
    if situation.base_dir != DEFAULT_BASE_DIR and re.search(r"^\w*Error: .*'/opt(/ml\b[^']*)?'", raised, re.MULTILINE):
        return [OWN_PATHS]
    if any(re.search(pattern, raised) for pattern in _KERAS_2):
        return [_keras(situation)]
    return []


def _of_argparse(text: str) -> str | None:
    """Return the hint for an error message of argparse about the script's arguments.

    Return None if the output contains no such message.
    """
    match = re.search(r"unrecognized arguments: (.*)", text)
    if match is not None:
        words = match[1].split()
        options = [word.partition("=")[0] for word in words if re.match(r"-[^\d.]", word)]
        if not options and not {"True", "False", "1", "0", "true", "false"}.issuperset(words):
            return None  # hyperparameters are passed as options, so these words are not from hyperparameters
        if not options:
            return (
                "a hyperparameter is passed with its value, but an option with store_true takes no value. To switch "
                "such an option on, pass arguments=['--NAME']. To switch the option off, leave the hyperparameter "
                "out."
            )
        return (
            f"every hyperparameter reaches the script as an argument: declare {cut(', '.join(options), 200)} in its "
            "argument parser, or use parse_known_args()."
        )
    match = re.search(r"error: argument (?:-\w, )?(--?[\w-]+)\S*: invalid .{1,100} value: '(\[.{0,1000}\])'", text)
    if match is not None:
        try:
            words = [match[1], *map(str, ast.literal_eval(match[2]))]
        except (ValueError, SyntaxError):  # the output was cut inside the list
            words = [match[1], "…"]
        return (
            f"a list is passed as one argument. For nargs='+', give arguments={cut(str(words), 200)} in place of the "
            "hyperparameter."
        )
    match = re.search(r"error: argument (?:-\w, )?(--?[\w-]+)\S*: expected (?:at least )?one argument", text)
    if match is not None:
        option = f"{match[1]}=VALUE"
        return f"if a value begins with a dash, argparse reads the value as an option: pass arguments=[{option!r}]."
    return None


def _not_installed(package: str, situation: Situation) -> str:
    if situation.elsewhere:
        named = (
            f" If fleetfit makes the environment, and a file of the job's code mentions {package}, fleetfit installs "
            f"{package}."
            if package in ("tensorflow", "tf_keras")
            else ""
        )
        return (
            f"{package} is not installed on the host, in the Python that runs the job. backend_options={{'python': …}} "
            f"can name another Python.{named}"
        )
    return (
        f"{package} is not installed in the Python that runs the job. `fleetfit doctor` shows the missing parts and "
        "how to install them."
    )


def _disk(situation: Situation) -> str:
    if situation.elsewhere:
        return "the host's disk is full: free some space on the host, or set TMPDIR to a folder on another disk."
    return (
        "the disk is full: `fleetfit clean` shows how much space finished jobs use; `fleetfit clean --free 5G` removes "
        "the oldest finished jobs."
    )


def _channel(variable: str, situation: Situation) -> str:
    """Return the hint for a script that reads the environment variable of a missing channel."""
    channels = {f"SM_CHANNEL_{name.upper()}": name for name in situation.channels}
    wanted = variable.removeprefix("SM_CHANNEL_").lower()
    if not channels:
        return f"the job has no channels: to set {variable}, use fit({{{wanted!r}: 'PATH'}}), or -i {wanted}=PATH."
    each = ", ".join(f"{name!r} ({as_variable})" for as_variable, name in channels.items())
    has = f"the job's channel is {each}" if len(channels) == 1 else f"the job's channels are {each}"
    near = nearest(variable, list(channels)) or (next(iter(channels)) if len(channels) == 1 else None)
    other = f", or let the script read {near}" if near is not None else ""
    return f"{has}: for {variable}, use fit({{{wanted!r}: 'PATH'}}), or -i {wanted}=PATH{other}."


def _tf_config(situation: Situation) -> str:
    """Return the hint for a script that reads TF_CONFIG. Only TensorFlow's own strategies set this variable."""
    strategy = situation.strategy
    having = f"the job's strategy is {strategy}" if strategy is not None else "the job has no strategy"
    return (
        "TF_CONFIG is set by the strategies collective_all_reduce (MultiWorkerMirroredStrategy) and parameter_server; "
        f"{having}."
    )


def _keras(situation: Situation) -> str:
    """Return the hint for a script that is written for Keras 2, but runs under Keras 3."""
    if situation.environment.get(_LEGACY) == "1":
        return (
            f"the script is written for Keras 2. With {_LEGACY}=1, tf.keras is Keras 2, but `import keras` is still "
            "Keras 3: write `import tf_keras`, or use tf.keras."
        )
    return (
        f"the script is written for Keras 2, but tf.keras is Keras 3. With environment={{{_LEGACY!r}: '1'}} "
        f"(--env {_LEGACY}=1), tf.keras is Keras 2 (tf_keras)."
    )
