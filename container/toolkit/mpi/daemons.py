"""mpirun's daemons on other hosts: our remote shell, the rank wrapper, and reading mpirun's line for a remote shell.

It is written for a shell on the other side, such as ``PATH=/x/bin:$PATH ; export PATH ; orted -mca ess "env" …``
(OpenMPI 4, ``plm_rsh_module.c``) or ``PRTE_PREFIX=/x;export PRTE_PREFIX;/x/bin/prted …`` (OpenMPI 5). We run no shell:
exported variables and the daemon are understood, anything else is refused.
"""

from __future__ import annotations

import itertools
import os
import re
import resource
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from container.contract import variables
from container.contract.environment import Machine
from container.launchers.mpi import RANK_PROGRAM, REMOTE_SHELL, USERS_PATH

#: The programs that mpirun may start on another host.
DAEMONS = ("orted", "prted")

#: The variables that name the folder of OpenMPI 4 and 5.
_PREFIXES = ("OPAL_PREFIX", "PRTE_PREFIX")

#: The parameters that name the remote shell, in OpenMPI 4 and 5.
_SHELL_PARAMETERS = ("plm_rsh_agent", "plm_ssh_agent")

#: Variables by which OpenMPI 4 and 5 ask the remote shell which login shell is behind it, instead of assuming the
#: user's own one: for sh, ksh, csh, tcsh and fish they write lines of other grammars (``setup_shell`` in
#: ``plm_rsh_module.c``). Ours answers bash, whose lines :func:`command` reads.
_ASK_FOR_SHELL = {"OMPI_MCA_plm_rsh_assume_same_shell": "0", "PRTE_MCA_plm_ssh_assume_same_shell": "0"}
_ANSWER = """[ "$2" = 'echo $SHELL' ] && { echo /bin/bash; exit; }"""

#: How many descriptors mpirun may have open. Before each remote shell it closes every number up to its limit, one by
#: one (``ssh_child`` in ``plm_rsh_module.c``): the million of many containers takes a tenth of a second, 2^30 minutes.
OPEN_FILES = 4096

#: ``NAME=value ; export NAME``: neither OpenMPI quotes the value, which may have spaces.
_EXPORTED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*?)\s*;\s*export \1\s*(?:;\s*|$)", re.DOTALL)
_VARIABLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}]*))?\}")


def command(words: list[str], environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Read the words that mpirun passed after the host's name.

    Args:
        words: The words, as a remote shell would join and read them.
        environment: What ``$NAME`` refers to.

    Returns:
        The daemon's argv list, and variables to set for it.

    Raises:
        ValueError: it is anything but one of MPI's daemons.
    """
    line = " ".join(words)
    added: dict[str, str] = {}
    rest = line.lstrip()
    while (match := _EXPORTED.match(rest)) is not None:
        added[match[1]] = _expand(match[2], {**environment, **added})
        rest = rest[match.end() :]
    for prefix, name in itertools.product(_PREFIXES, DAEMONS):
        program = f"{added.get(prefix)}/bin/{name}"
        if re.match(rf"{re.escape(program)}(\s|$)", rest):
            rest = shlex.quote(program) + rest[len(program) :]
    lexer = shlex.shlex(rest, posix=True, punctuation_chars=";")
    lexer.whitespace_split = True
    lexer.commenters = ""
    daemon: list[str] = []
    for token in lexer:
        if set(token) == {";"}:
            raise ValueError(
                f"mpirun's command must only launch mpirun's daemon, but it contains a second command: {line[:300]}"
            )
        daemon.append(token)
    if not daemon:
        raise ValueError(f"mpirun's command names no daemon to start: {line[:300]}")
    if os.path.basename(daemon[0]) not in DAEMONS:
        raise ValueError(
            f"mpirun's command starts another program than its daemon ({', '.join(DAEMONS)}): {line[:300]}"
        )
    return daemon, added


def _expand(value: str, variables: Mapping[str, str]) -> str:
    """Put variables' values in: ``$NAME``, ``${NAME}``, ``${NAME:-default}``."""
    return _VARIABLE.sub(lambda match: variables.get(match[1] or match[2], "") or match[3] or "", value)


def of_host(
    argv: Sequence[str], added: Mapping[str, str], environment: Mapping[str, str], machine: Machine
) -> tuple[list[str], dict[str, str]]:
    """Return a daemon's line and variables with this host's OpenMPI in place of algo-1's, which may lie elsewhere.

    The rank wrapper sets what is meant for ranks.

    Args:
        argv: The daemon's line, see :func:`command`.
        added: Its variables.
        environment: What all processes of this host get.
        machine: What this host runs on.

    Raises:
        ValueError: this host's OpenMPI has no such daemon.
    """
    theirs, ours = (os.path.dirname(os.path.dirname(path)) for path in (argv[0], machine.mpirun or ""))
    if not theirs or not ours or theirs == ours:
        return list(argv), dict(added)
    daemon = f"{ours}/bin/{os.path.basename(argv[0])}"
    if not os.path.exists(daemon):
        program = os.path.basename(argv[0])
        raise ValueError(f"algo-1's OpenMPI starts {program}, but the OpenMPI in {ours} has no {program}")
    moved = {}
    for name, value in added.items():
        first, colon, rest = value.partition(":")  # what mpirun has put in front of this host's own
        if first in (theirs, *(f"{theirs}/{folder}" for folder in ("bin", "lib", "lib64"))):
            first = ours + first[len(theirs) :]
        moved[name] = f"{first}{colon}{rest}"
    moved.update({name: environment[name] for name in _PREFIXES if name in added and name in environment})
    if "OPAL_PREFIX" in environment:
        # mpirun gives its own to all ranks, where PMIx would not find what it loads, and MPI_Init not end.
        moved[f"{variables.USERS_PREFIX}PMIX_INSTALL_PREFIX"] = environment["OPAL_PREFIX"]
    return [daemon, *argv[1:]], moved


def prepare(argv: Sequence[str], path: str, runtime_dir: Path, machine: Machine) -> list[str]:
    """Make the remote shell that an mpirun line refers to, and put into the line what it leaves open.

    Args:
        argv: The planned line, with :data:`REMOTE_SHELL` and, where the user exports it, :data:`USERS_PATH` in it.
        path: The PATH of this host's processes.
        runtime_dir: The host's private folder; its path must not hold spaces, since mpirun splits there.
        machine: What this host runs on.

    Raises:
        OSError: it cannot be made.
    """
    shell = _make_shell(runtime_dir, machine)
    found = {REMOTE_SHELL: shell, USERS_PATH: f"{USERS_PATH}={path}"}
    return [found.get(word, word) for word in argv]


def with_own_shell(argv: Sequence[str], runtime_dir: Path, machine: Machine) -> list[str]:
    """Return a daemon's line with this host's remote shell in place of algo-1's, which it checks to be there.

    Args:
        argv: The daemon's line.
        runtime_dir: The host's private folder.
        machine: What this host runs on.

    Raises:
        OSError: it cannot be made.
    """
    found = list(argv)
    for number, word in enumerate(found[:-1]):
        if word in _SHELL_PARAMETERS:
            found[number + 1] = _make_shell(runtime_dir, machine)
    return found


def _make_shell(runtime_dir: Path, machine: Machine) -> str:
    shell = runtime_dir / "rsh"
    if not shell.exists():
        program = [machine.python, "-I", "-S", os.path.join(machine.container_package, "__main__.py"), "rsh"]
        shell.write_text(f'#!/bin/sh\n{_ANSWER}\nexec {shlex.join(program)} "$@"\n', encoding="utf-8")
        shell.chmod(0o700)
    return str(shell)


def make_rank_program(runtime_dir: Path, machine: Machine) -> None:
    """Make this host's program of the name :data:`RANK_PROGRAM`.

    It is no shell script: a shell drops variables of names such as ``SM_HP_BATCH-SIZE``. The interpreter's path may
    hold spaces, or be longer than the kernel reads.

    Raises:
        OSError: it cannot be made.
    """
    program, staged = runtime_dir / RANK_PROGRAM, runtime_dir / f".{RANK_PROGRAM}"
    interpreter = runtime_dir / "python"
    if program.exists():  # an earlier attempt's
        return
    interpreter.unlink(missing_ok=True)  # of one that was cut short
    interpreter.symlink_to(machine.python)
    staged.write_text(
        f"#!{interpreter} -IS\n"
        f"import sys\nsys.path.insert(0, {os.path.dirname(machine.container_package)!r})\n"
        "from container.__main__ import leave\nfrom container.toolkit import rank\n"
        'leave(rank.main(["--", *sys.argv[1:]]))\n',
        encoding="utf-8",
    )
    staged.chmod(0o700)
    staged.rename(program)


def session_environment(runtime_dir: Path, path: str) -> dict[str, str]:
    """Variables for mpirun and its daemons: a private folder for their session files, which they find by TMPDIR, and
    the folder in which they find the rank wrapper.

    The rank wrapper gives the script its own variables back, and its limit of open descriptors
    (:func:`limit_open_files`).

    Args:
        runtime_dir: The host's private folder.
        path: What they have as PATH without.

    Raises:
        OSError: the folder cannot be made.
    """
    sessions = runtime_dir / "mpi"
    sessions.mkdir(mode=0o700, exist_ok=True)
    environment = {
        "PATH": f"{runtime_dir}:{path}",
        "TMPDIR": str(sessions),
        **_ASK_FOR_SHELL,
        **{variables.USERS_PREFIX + name: os.environ.get(name, "") for name in _ASK_FOR_SHELL},
        variables.USERS_TMPDIR: os.environ.get("TMPDIR", ""),
    }
    users, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if users > OPEN_FILES:
        environment[variables.USERS_OPEN_FILES] = str(users)
    return environment


def node_environment(argv: Sequence[str], host: str, machine: Machine) -> dict[str, str]:
    """Variables by which OpenMPI 5's daemon calls itself by its host's name.

    Hosts that share a machine have one host name, by which PRRTE would take their daemons for one node, and MPI_Init
    would hang. The name that it takes instead is the one of Slurm (``ess_slurm_module.c``), the same everywhere else.
    The rank wrapper gives the script its own values back.

    Args:
        argv: The daemon's line.
        host: This host's name.
        machine: What this host runs on.
    """
    if not machine.shared or os.path.basename(argv[0]) != "prted":
        return {}
    environment = {"SLURM_JOBID": "1", "SLURM_NODEID": "0", "SLURMD_NODENAME": host}
    users = {variables.USERS_PREFIX + name: os.environ.get(name, "") for name in environment}
    return {**environment, **users}


def limit_open_files(pid: int) -> None:
    """Lower the limit of an mpirun that has just been started to :data:`OPEN_FILES`."""
    users, most = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    if users > OPEN_FILES:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (OPEN_FILES, most))


#: Two harmless warnings of mpirun. Its child has become a program before mpirun could put it into a group of its own,
#: which the child does itself as well: in every third job or so. And a user's login shell is none, such as nologin.
_NOISE = re.compile(
    rb"\[[^\]\s]+\] (?:plm:rsh: Warning: setpgid\(\d+,\d+\) failed in parent with errno=Permission denied\(13\)"
    rb"|WARNING: (?:local|rsh|ssh) probe returned unhandled shell[:;].* assuming bash)\r?\n"
)
_RULE = re.compile(rb"-{20,}\r?\n")
_LOST = re.compile(rb"\w+ has lost communication with a remote daemon")
_DAEMON = re.compile(rb"\s*Remote daemon: .* on node (\S+)")
#: The longest of mpirun's messages between two rules, in lines.
_LONGEST_MESSAGE = 60


class Words:
    """What mpirun and its daemons print, with what they say of their own inner life in fewer words.

    A lost daemon takes them ten lines, which speak of networks. Why it ended its host's toolkit says.
    """

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._inside = False

    def shorten(self, pieces: list[bytes], final: bool) -> list[bytes]:
        """Return the pieces to print.

        Args:
            pieces: What has been printed, line by line.
            final: Whether these are the last.
        """
        found: list[bytes] = []
        for piece in pieces:
            rule = _RULE.fullmatch(piece) is not None
            if self._held:
                self._held.append(piece)
                if rule or len(self._held) > _LONGEST_MESSAGE or not _LOST.match(self._held[1]):
                    found += self._message(ended=rule)
            elif rule and not self._inside:
                self._held.append(piece)
            elif not _NOISE.fullmatch(piece):
                self._inside = self._inside and not rule
                found.append(piece)
        return found + (self._message(ended=True) if final else [])

    def _message(self, *, ended: bool) -> list[bytes]:
        held, self._held = self._held, []
        self._inside = bool(held) and not ended
        daemon = next(filter(None, map(_DAEMON.match, held)), None)
        return [b"mpirun lost its daemon on " + daemon[1] + b".\n"] if daemon is not None else held


def lost_daemon(text: str) -> str | None:
    """Return the host whose daemon mpirun has lost, by what it printed (:class:`Words`)."""
    match = re.search(r"^mpirun lost its daemon on (\S+)\.$", text, re.MULTILINE)
    return match[1] if match is not None else None
