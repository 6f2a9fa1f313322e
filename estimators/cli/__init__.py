"""The subcommands of ``fleetfit``: one module each, with ``add(subparsers)`` and the function that it sets as ``run``.

The modules import argparse and little else, so that ``--help`` and completion are quick; what a command needs is
imported when it runs. A command returns its exit status; :mod:`estimators.cli.main` turns errors into messages and
statuses. Results go to standard output, everything else to standard error.
"""

from __future__ import annotations

import enum


class Exit(enum.IntEnum):
    """Exit statuses, the same for every command."""

    OK = 0
    FAILED = 1  # the job failed; `doctor`: something is missing
    USAGE = 2  # an argument, a file or a request is wrong; nothing was started
    NOT_FOUND = 3  # there is no such job
    STOPPED = 4  # the job was stopped before it completed
    UNABLE = 5  # the machine, a record or a supervisor prevents it: the message says which
    TIMEOUT = 124  # `wait --timeout`: it is not over yet
    INTERRUPTED = 130  # Ctrl-C
    BROKEN_PIPE = 141  # the reader of our output went away
    TERMINATED = 143  # SIGTERM, SIGHUP


#: Shown at the end of ``fleetfit --help``.
EXIT_STATUSES = """\
exit status:
  0    done; `train`, `wait`: the job completed
  1    the job failed; `doctor`: something is missing
  2    an argument or a file is wrong; nothing was started
  3    there is no such job
  4    the job was stopped (stop, max_run) before it completed
  5    the machine, a record or a supervisor prevents the command; the message says which
  124  `wait --timeout`: the job has not ended yet
  130  interrupted (Ctrl-C); 141: the reader of a pipe has ended; 143: SIGTERM, SIGHUP
"""
