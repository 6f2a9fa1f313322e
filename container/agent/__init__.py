"""Run the host agent, which does the tasks of SageMaker's platform on a host: it provides the input data, and collects
the results. It uses the same file tree as SageMaker.

The agent runs outside the training process (and container), so that any image that follows the container contract
works.

* ``agent check``: reads a description of the job's data from standard input, and reports the errors that can be
  detected before the job starts.
* ``agent prepare --base-dir DIR… --channels FILE [--everybody]``: puts the input channels into each host's file
  tree DIR. FILE is JSON: ``{channel: {"uri": "/data/digits", "mode": "File"}}``. With ``--everybody``, any user may
  write into the channels.
* ``agent collect --base-dir DIR… --output DIR``: packs the hosts' models and outputs, in the given order, into
  ``DIR/model.tar.gz`` and ``DIR/output.tar.gz``.
* ``agent mount --base-dir DIR… --channels FILE --mounts DIR [--everybody]``: mounts channels in FastFile mode, until
  standard input ends. With ``--everybody``, any user may read the channels.
* ``agent sync down|up --dir DIR --uri URI …``: synchronises a folder of checkpoints with a prefix of S3.
* ``agent sync out --dir DIR …``: sends the new files of a folder to the job's supervisor.
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

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from container.agent.words import Words
from container.contract.errors import AgentError

_USAGE = (
    "usage: python -m container agent prepare --base-dir DIR… --channels FILE [--number I --hosts N] [--everybody] | "
    "agent collect --base-dir DIR… --output DIR"
)
_OPTIONS = {"prepare": "--channels", "collect": "--output"}
#: The modules of the commands that parse their own options.
_MODULES = {
    "check": "preflight",
    "divide": "divide",
    "host": "resident",
    "mount": "mounting",
    "notices": "notices",
    "pipe": "pipes.serving",
    "sync": "syncing",
}


def main(argv: Sequence[str]) -> int:
    """Run one of the agent's commands and return its exit code."""
    command = argv[0] if argv else ""
    if command in _MODULES:
        program = importlib.import_module(f"{__name__}.{_MODULES[command]}")
        return int(program.main(argv[1:]))
    try:
        if command not in _OPTIONS:
            raise ValueError(f"the agent has no command {command!r}")
        of_prepare = command == "prepare"
        numbers, flags = (("--number", "--hosts"), ("--everybody",)) if of_prepare else ((), ())
        words = Words(argv[1:], ("--base-dir", _OPTIONS[command], *numbers), flags)
        trees = [Path(base_dir) for base_dir in words.all("--base-dir")]
        value = words.one(_OPTIONS[command])
        place = (int(words.one("--number")), int(words.one("--hosts"))) if "--number" in words else None
    except ValueError as error:
        print(f"{error}; {_USAGE}", file=sys.stderr)
        return 2
    try:
        if of_prepare:
            from container.agent import channels

            wanted = channels.read_channels(Path(value))
            channels.prepare(trees, wanted, tell=_tell, everybody="--everybody" in words, place=place)
        else:
            from container.agent import artifacts

            artifacts.collect(trees, value, tell=_tell)
    except AgentError as error:
        sys.stdout.flush()
        print(str(error).replace("\n", " "), file=sys.stderr)
        return 1
    return 0


def _tell(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
