"""Define the subcommands of ``fleetfit``. The function ``add(subparsers)`` of each module adds a subcommand.

To keep ``--help`` and completion quick, the modules import argparse and little else. A command imports other modules
when the command runs. A command is a function that returns its exit status. :mod:`estimators.cli.main` turns errors
into messages and exit statuses. Commands write results to standard output, and everything else to standard error.
"""

from __future__ import annotations

import enum


class Exit(enum.IntEnum):
    """The exit statuses, which are the same for every command."""

    OK = 0
    FAILED = 1  # the job failed; `doctor`: something is missing
    USAGE = 2  # an argument, a file or a request is wrong; nothing was started
    NOT_FOUND = 3  # the job does not exist
    STOPPED = 4  # the job was stopped before it completed
    UNABLE = 5  # the machine, a record or a supervisor prevents the command: the message names the cause
    TIMEOUT = 124  # `wait --timeout`: the job has not ended yet
    INTERRUPTED = 130  # Ctrl-C
    BROKEN_PIPE = 141  # the reader of our output has closed the pipe
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
