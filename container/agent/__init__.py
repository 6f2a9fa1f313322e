"""Run the host agent, which does the tasks of SageMaker's platform on a host: it provides the input data, and collects
the results. It uses the same file tree as SageMaker.

The agent runs outside the training process (and container), so that any image that follows the container contract
works.

* ``agent check``: reads from standard input which data a job uses, and reports the errors that can be detected before
  the job starts.
* ``agent prepare --base-dir DIR… --channels FILE [--everybody]``: puts the input channels into each tree. FILE is JSON:
  ``{channel: {"uri": "/data/digits", "mode": "File"}}``. With ``--everybody``, any user may write into the channels.
* ``agent collect --base-dir DIR… --output DIR``: packs the hosts' models and outputs, in the given order, into
  ``DIR/model.tar.gz`` and ``DIR/output.tar.gz``.
* ``agent mount --base-dir DIR… --channels FILE --mounts DIR [--everybody]``: mounts channels in FastFile mode, until
  standard input ends. With ``--everybody``, any user may read the channels.
* ``agent sync down|up --dir DIR --uri URI …``: synchronises checkpoints with a prefix of S3.
* ``agent relay --fd NUMBER --to HOST:PORT …``: lets containers reach servers on this machine's loopback.
* ``agent divide SRC DST --shards N``: divides one large file of records into many.
* ``agent pipe --base-dir DIR --channels FILE --host NAME …``: feeds a host's channels in Pipe mode, until SIGTERM.
* ``agent notices --imds URL --every SECONDS``: reports when a spot host will be interrupted, until standard input ends.
* ``agent host [--lifeline FD]``: runs on a remote machine, and does all of these tasks there
  (:mod:`container.agent.resident`). With ``--lifeline``, the agent stops when the other end of the descriptor FD is
  closed.

If ``prepare`` runs separately for each host, ``--number I --hosts N`` passes the host's number and the number of hosts.
Events and messages are written to standard output. An error is written as one line to standard error. The exit code is
0 on success; 1 after an error of the job (a channel that does not exist, a full disk); 2 if the command line is
invalid.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from container.contract.errors import AgentError

_USAGE = (
    "usage: python -m container agent prepare --base-dir DIR… --channels FILE [--number I --hosts N] [--everybody] | "
    "agent collect --base-dir DIR… --output DIR"
)
_OPTIONS = {"prepare": "--channels", "collect": "--output"}


def main(argv: Sequence[str]) -> int:
    """Run one of the agent's commands and return its exit code."""
    if argv and argv[0] == "pipe":
        from container.agent.pipes import serving

        return serving.main(argv[1:])
    if argv and argv[0] == "divide":
        from container.agent import divide

        return divide.main(argv[1:])
    if argv and argv[0] == "mount":
        from container.agent import mounting

        return mounting.main(argv[1:])
    if argv and argv[0] == "relay":
        from container.agent import relay

        return relay.main(argv[1:])
    if argv and argv[0] == "sync":
        from container.agent import syncing

        return syncing.main(argv[1:])
    if argv and argv[0] == "notices":
        from container.agent import notices

        return notices.main(argv[1:])
    if argv and argv[0] == "host":
        from container.agent import resident

        return resident.main(argv[1:])
    if list(argv) == ["check"]:
        from container.agent import preflight

        return preflight.main()
    try:
        everybody = list(argv[:1]) == ["prepare"] and "--everybody" in argv
        words, place = _take_place([word for word in argv if not (everybody and word == "--everybody")])
        command, base_dirs, value = _parse(words)
    except ValueError as error:
        print(f"{error}; {_USAGE}", file=sys.stderr)
        return 2
    try:
        if command == "prepare":
            from container.agent import channels

            wanted = channels.read_channels(Path(value))
            trees = [Path(base_dir) for base_dir in base_dirs]
            channels.prepare(trees, wanted, tell=_tell, everybody=everybody, place=place)
        else:
            from container.agent import artifacts

            artifacts.collect([Path(base_dir) for base_dir in base_dirs], value, tell=_tell)
    except AgentError as error:
        sys.stdout.flush()
        print(str(error).replace("\n", " "), file=sys.stderr)
        return 1
    return 0


def _tell(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def _take_place(argv: Sequence[str]) -> tuple[list[str], tuple[int, int] | None]:
    """Remove ``--number I --hosts N`` from the arguments of ``prepare``.

    Returns:
        The remaining arguments and the pair ``(I, N)``. The pair is None if an option is missing.
    """
    words = list(argv)
    found = []
    for option in ("--number", "--hosts"):
        if words[:1] == ["prepare"] and option in words[:-1]:
            at = words.index(option)
            value = words[at + 1]
            if not value.isdecimal():
                raise ValueError(f"{option} must be a whole number, got {value!r}")
            found.append(int(value))
            del words[at : at + 2]
    return words, (found[0], found[1]) if len(found) == 2 else None


def _parse(argv: Sequence[str]) -> tuple[str, list[str], str]:
    """Parse the command, the base directories and the value of the command's option.

    The function does not use argparse, because importing argparse takes longer.
    """
    if not argv or argv[0] not in _OPTIONS:
        raise ValueError(f"the agent has no command {argv[0] if argv else ''!r}")
    command, rest = argv[0], list(argv[1:])
    base_dirs: list[str] = []
    values: list[str] = []
    while rest:
        option = rest.pop(0)
        if option not in ("--base-dir", _OPTIONS[command]):
            raise ValueError(f"agent {command} has no option {option!r}")
        if not rest:
            raise ValueError(f"{option} needs a value")
        (base_dirs if option == "--base-dir" else values).append(rest.pop(0))
    if not base_dirs:
        raise ValueError("--base-dir is missing")
    if len(values) != 1:
        raise ValueError(f"{_OPTIONS[command]} must be given once")
    return command, base_dirs, values[0]
