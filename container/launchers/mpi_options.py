"""Parse the user's ``custom_mpi_options``, and merge them with our options. The user's options take precedence. Pure.

mpirun aborts if a ``-mca`` parameter is repeated or an option is unknown. Therefore the options are parsed instead of
appended. The tables follow OpenMPI 4.1's ``orterun.c`` and OpenMPI 5.0's ``mpirun --help``.
"""

from __future__ import annotations

import shlex

from container.contract.frozen import dataclass

#: Options that take no argument.
_FLAGS = frozenset(
    """allow-run-as-root bind-to-core bind-to-socket bycore bynode byslot continuous crdebug d debug debug-daemons
    debug-daemons-file debug-devel disable-recovery display-allocation display-devel-allocation display-devel-map
    display-comm display-comm-finalize display-diffable-map display-map display-topo do-not-launch do-not-resolve dvm
    enable-instant-on-support enable-recovery fwd-mpirun-port get-stack-traces index-argv-by-rank leave-session-attached
    merge-stderr-to-stdout nolocal nooversubscribe noprefix novm output-proctable oversubscribe pernode
    preload-binary q quiet report-bindings report-child-jobs-separately report-state-on-timeout s
    set-cwd-to-session-dir show-progress tag-output timestamp-output tv use-hwthread-cpus use-regexp v verbose xml
    hetero-nodes no-aggregate-help no-app-prefix p parsable parseable soft stop-in-app stop-in-init stop-on-exec
    V version""".split()  # noqa: SIM905
)

#: Options that take one argument.
_WITH_ONE = frozenset(
    """app bind-to cartofile cf cpu-list cpu-set cpus-per-proc cpus-per-rank debugger default-hostfile display dvm-uri
    host hostfile hnp launch-agent machinefile map-by max-restarts max-vm-size mem-map memory npernode npersocket
    ompi-server output output-filename path personality ppr prefix preload-files rank-by rankfile report-events
    report-pid report-uri rf runtime-options sstore-load stdin stream-buffering timeout tune wd wdir xml-file xterm
    am amca append-env app-pmix-prefix arch bindto dvm-uri file forward-signals gpu-support initial-errhandler mapby
    memory-alloc-kinds output-directory prepend-env pset rankby rtos set-env spawn-timeout tmpdir unset-env with-ft
    x H N n np c""".split()  # noqa: SIM905
)

#: Options that take two arguments.
_WITH_TWO = frozenset({"mca", "gmca", "omca", "gomca", "pmixmca", "prtemca"})

#: Options that fleetfit itself sets -> where their value comes from.
_OURS = {
    "np": "the number of ranks is instance_count x processes_per_host",
    "host": "the hosts are the job's own",
    "hostfile": "the hosts are the job's own",
    "app": "the program is the job's entry point",
    "xterm": "a job has no terminal",
}

_ALIASES = {
    "n": "np",
    "c": "np",
    "H": "host",
    "machinefile": "hostfile",
    "default-hostfile": "hostfile",
    "v": "verbose",
    "q": "quiet",
    "wd": "wdir",
    "rf": "rankfile",
    "cf": "cartofile",
    "d": "debug-devel",
    "s": "preload-binary",
    "npernode": "N",
}


@dataclass(frozen=True)
class Option:
    """An option of mpirun.

    Attributes:
        key: The identity of the option, such as ``("mca", "pml")``, ``("x", "PATH")`` or ``("option", "bind-to")``. Two
            options with the same key set the same parameter.
        words: The words of the option in the argv list.
    """

    key: tuple[str, str]
    words: tuple[str, ...]


def parse(text: str, *, major: int = 4) -> list[Option]:
    """Parse ``custom_mpi_options``.

    ``--NCCL_DEBUG=V``, which mpirun does not know, becomes ``-x NCCL_DEBUG=V``, as in SageMaker's toolkit (``mpi.py``,
    ``_parse_custom_mpi_options``).

    Args:
        text: The options, quoted as for a shell.
        major: The major version of OpenMPI. For version 5, which aborts on long options with a single dash, such
            options get a second dash.

    Raises:
        ValueError: a quotation is not closed, an option lacks its argument, an option is repeated with a different
            value, a word is not an option, or fleetfit itself sets the option.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"custom_mpi_options {text!r}: {error}.") from None
    options: list[Option] = []
    position = 0
    while position < len(words):
        option, position = _next(words, position, text)
        if major >= 5 and len(option.words[0]) > 2 and not option.words[0].startswith("--"):
            option = Option(option.key, (f"-{option.words[0]}", *option.words[1:]))
        same = next((other for other in options if other.key == option.key), None)
        if same is None:
            options.append(option)
        elif same.words[1:] != option.words[1:]:
            raise ValueError(
                f"custom_mpi_options {text!r} sets {_shown(option.key)} twice, to {' '.join(same.words[1:])!r} and "
                f"{' '.join(option.words[1:])!r}. Set it only once, or mpirun aborts."
            )
    return options


def _next(words: list[str], position: int, text: str) -> tuple[Option, int]:
    word = words[position]
    if not word.startswith("-") or word in ("-", "--"):
        raise ValueError(
            f"custom_mpi_options {text!r}: {word!r} is not an option, and mpirun would take it for the program to run."
        )
    name, equals, attached = word.lstrip("-").partition("=")
    if name == "NCCL_DEBUG":
        value, position = _argument(words, position, attached if equals else None, text)
        return Option(("x", "NCCL_DEBUG"), ("-x", f"NCCL_DEBUG={value}")), position
    if name in _WITH_TWO:
        if position + 2 >= len(words):
            raise ValueError(f"custom_mpi_options {text!r}: {word} needs a parameter and its value.")
        parameter, value = words[position + 1 : position + 3]
        return Option(_mca_key(name, parameter), (word, parameter, value)), position + 3
    if name == "x":
        value, position = _argument(words, position, attached if equals else None, text)
        return Option(_x_key(value), ("-x", value)), position
    canonical = _ALIASES.get(name, name)
    if canonical in _OURS:
        raise ValueError(f"custom_mpi_options {text!r}: leave out {word}; {_OURS[canonical]}.")
    key = ("option", canonical)
    if name in _FLAGS or equals:
        return Option(key, (word,)), position + 1
    if name in _WITH_ONE:
        value, position = _argument(words, position, None, text)
        return Option(key, (word, value)), position
    # An option that is not in the tables is passed on with its arguments; mpirun reports unknown options.
    end = position + 1
    while end < len(words) and not words[end].startswith("-"):
        end += 1
    return Option(key, tuple(words[position:end])), end


def _argument(words: list[str], position: int, attached: str | None, text: str) -> tuple[str, int]:
    if attached is not None:
        return attached, position + 1
    if position + 1 >= len(words):
        raise ValueError(f"custom_mpi_options {text!r}: {words[position]} needs an argument.")
    return words[position + 1], position + 2


def _mca_key(name: str, parameter: str) -> tuple[str, str]:
    # The vader transport is called sm in OpenMPI 5; -mca, --mca and -gmca set the same parameters.
    return ("mca", parameter.replace("btl_sm_", "btl_vader_"))


def _x_key(value: str) -> tuple[str, str]:
    name = value.partition("=")[0]
    if name.startswith("OMPI_MCA_"):
        return _mca_key("mca", name.removeprefix("OMPI_MCA_"))
    return ("x", name)


def mca(parameter: str, value: str) -> Option:
    """Return the option that sets an MCA parameter."""
    return Option(_mca_key("mca", parameter), ("--mca", parameter, value))


def prtemca(parameter: str, value: str) -> Option:
    """Return the option that sets a parameter of PRRTE, the runtime of OpenMPI 5."""
    return Option(("mca", parameter), ("--prtemca", parameter, value))


def export(name: str, value: str) -> Option:
    """Return the option that exports a variable to every rank."""
    return Option(("x", name), ("-x", f"{name}={value}"))


def option(name: str, *arguments: str) -> Option:
    """Return an option that is neither an MCA parameter nor an exported variable.

    Args:
        name: The option's long name.
        arguments: The option's arguments.
    """
    return Option(("option", name), (f"--{name}", *arguments))


def merge(defaults: list[Option], users: list[Option]) -> list[str]:
    """Return the words of all options: first our defaults, then the user's options. Defaults that the user also sets
    are omitted.
    """
    theirs = {item.key for item in users}
    kept = [item for item in defaults if item.key not in theirs]
    return [word for item in (*kept, *users) for word in item.words]


def _shown(key: tuple[str, str]) -> str:
    kind, name = key
    return {"mca": f"the MCA parameter {name}", "x": f"the variable {name}"}.get(kind, f"--{name}")
