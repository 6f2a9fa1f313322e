"""Prepare mpirun's daemons on other hosts: create our remote shell and the rank wrapper, and parse the daemons' command
lines.

mpirun writes a command line for a shell on the other host, such as ``PATH=/x/bin:$PATH ; export PATH ; orted -mca ess
"env" …`` (OpenMPI 4, ``plm_rsh_module.c``) or ``PRTE_PREFIX=/x;export PRTE_PREFIX;/x/bin/prted …`` (OpenMPI 5).
fleetfit runs no shell. Instead, fleetfit parses exported variables and the daemon's command, and refuses any other
text.
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

#: The variables that name the installation folder of OpenMPI 4 and 5.
_PREFIXES = ("OPAL_PREFIX", "PRTE_PREFIX")

#: The parameters that name the remote shell, in OpenMPI 4 and 5.
_SHELL_PARAMETERS = ("plm_rsh_agent", "plm_ssh_agent")

#: Variables with which OpenMPI 4 and 5 query the remote shell for the other host's login shell. Without the query,
#: OpenMPI would assume that the other host's login shell is the same as the user's login shell here. For sh, ksh, csh,
#: tcsh and fish, OpenMPI writes different command lines (``setup_shell`` in ``plm_rsh_module.c``). Our remote shell
#: answers bash, because :func:`command` parses the command lines for bash.
_ASK_FOR_SHELL = {"OMPI_MCA_plm_rsh_assume_same_shell": "0", "PRTE_MCA_plm_ssh_assume_same_shell": "0"}
_ANSWER = """[ "$2" = 'echo $SHELL' ] && { echo /bin/bash; exit; }"""

#: Maximum number of open descriptors for mpirun. Before mpirun starts a remote shell, it closes every possible
#: descriptor up to its limit, one by one (``ssh_child`` in ``plm_rsh_module.c``). With a limit of a million, as in many
#: containers, this takes a tenth of a second; with 2^30, minutes.
OPEN_FILES = 4096

#: ``NAME=value ; export NAME``: neither version of OpenMPI quotes the value, which may contain spaces.
_EXPORTED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*?)\s*;\s*export \1\s*(?:;\s*|$)", re.DOTALL)
_VARIABLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}]*))?\}")


def command(words: list[str], environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Parse the command that mpirun has passed to its remote shell after the host's name.

    Args:
        words: The words of the command. ssh would join them, and a shell on the other host would parse them.
        environment: The variables that ``$NAME`` refers to.

    Returns:
        The daemon's argv list, and the variables to set for the daemon.

    Raises:
        ValueError: the command is not one of mpirun's daemons.
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
    """Replace references to variables by the variables' values: ``$NAME``, ``${NAME}``, ``${NAME:-default}``."""
    return _VARIABLE.sub(lambda match: variables.get(match[1] or match[2], "") or match[3] or "", value)


def of_host(
    argv: Sequence[str], added: Mapping[str, str], environment: Mapping[str, str], machine: Machine
) -> tuple[list[str], dict[str, str]]:
    """Replace the folder of algo-1's OpenMPI by that of this host's OpenMPI, in a daemon's command line and variables.

    mpirun has written the command line on algo-1, whose OpenMPI may be in a different folder. A returned variable with
    the prefix ``USERS_PREFIX`` is for the ranks: the rank wrapper removes the prefix.

    Args:
        argv: The daemon's command line. See :func:`command`.
        added: The variables that mpirun's command line sets for the daemon.
        environment: The variables of all processes of this host.
        machine: This host's machine.

    Returns:
        The new command line, and the new variables.

    Raises:
        ValueError: this host's OpenMPI does not have the daemon.
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
        first, colon, rest = value.partition(":")  # the folder that mpirun has put in front of this host's own value
        if first in (theirs, *(f"{theirs}/{folder}" for folder in ("bin", "lib", "lib64"))):
            first = ours + first[len(theirs) :]
        moved[name] = f"{first}{colon}{rest}"
    moved.update({name: environment[name] for name in _PREFIXES if name in added and name in environment})
    if "OPAL_PREFIX" in environment:
        # mpirun passes its own prefix to all ranks; with it, PMIx would not find its plug-ins, and MPI_Init would hang.
        moved[f"{variables.USERS_PREFIX}PMIX_INSTALL_PREFIX"] = environment["OPAL_PREFIX"]
    return [daemon, *argv[1:]], moved


def prepare(argv: Sequence[str], path: str, runtime_dir: Path, machine: Machine) -> list[str]:
    """Create the remote shell for an mpirun command line. Return the command line with its placeholders replaced.

    Args:
        argv: The planned command line, with :data:`REMOTE_SHELL` and, if the user exports PATH, :data:`USERS_PATH`.
        path: The PATH of this host's processes.
        runtime_dir: The host's private folder. Its path must not contain spaces, because mpirun splits the remote
            shell's path at spaces.
        machine: This host's machine.

    Raises:
        OSError: the remote shell cannot be created.
    """
    shell = _make_shell(runtime_dir, machine)
    # A colon among the script's arguments would begin another program. Ranks read their command from a file.
    found = {REMOTE_SHELL: shell, USERS_PATH: f"{USERS_PATH}={path}", ":": "-"}
    return [found.get(word, word) for word in argv]


def with_own_shell(argv: Sequence[str], runtime_dir: Path, machine: Machine) -> list[str]:
    """Return a daemon's command line, with this host's remote shell instead of algo-1's.

    The path must be replaced because the daemon checks that the file exists.

    Args:
        argv: The daemon's command line.
        runtime_dir: The host's private folder.
        machine: This host's machine.

    Raises:
        OSError: the remote shell cannot be created.
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
    """Create the program that mpirun starts for each rank on this host: the rank wrapper, as :data:`RANK_PROGRAM`.

    The program is not a shell script, because a shell drops variables with names such as ``SM_HP_BATCH-SIZE``. The
    program's first line names a link to the interpreter, because the interpreter's path may contain spaces, or be too
    long for the kernel.

    Raises:
        OSError: the program cannot be created.
    """
    program, staged = runtime_dir / RANK_PROGRAM, runtime_dir / f".{RANK_PROGRAM}"
    interpreter = runtime_dir / "python"
    if program.exists():  # created by an earlier attempt
        return
    interpreter.unlink(missing_ok=True)  # left by an attempt that was interrupted here
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
    """Return variables for mpirun and its daemons.

    The variables are TMPDIR (a private folder for session files), PATH (with the folder of the rank wrapper), and the
    original values of the user's variables. The rank wrapper restores the user's variables, and the limit of open
    descriptors (:func:`limit_open_files`).

    Args:
        runtime_dir: The host's private folder.
        path: The PATH without the host's private folder.

    Raises:
        OSError: the folder for session files cannot be created.
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
    """Return variables with which OpenMPI 5's daemon uses the host's name as its node name.

    Return no variables for OpenMPI 4's daemon, or if each host has its own machine.

    Hosts that share a machine have the same host name. PRRTE would treat their daemons as one node, and MPI_Init would
    hang. With these variables, the daemon uses Slurm's node name (``ess_slurm_module.c``), and otherwise works as
    without Slurm. The rank wrapper restores the original values for the script.

    Args:
        argv: The daemon's command line.
        host: The name of this host.
        machine: This host's machine.
    """
    if not machine.shared or os.path.basename(argv[0]) != "prted":
        return {}
    environment = {"SLURM_JOBID": "1", "SLURM_NODEID": "0", "SLURMD_NODENAME": host}
    users = {variables.USERS_PREFIX + name: os.environ.get(name, "") for name in environment}
    return {**environment, **users}


def limit_open_files(pid: int) -> None:
    """Lower mpirun's limit of open descriptors to :data:`OPEN_FILES`. The caller has just started mpirun."""
    users, most = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    if users > OPEN_FILES:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (OPEN_FILES, most))


#: Two harmless warnings of mpirun. The first says, in about every third job, that mpirun could not put its child into a
#: process group, because the child was already executing its program. The child does this itself, too. The second says
#: that a user's login shell, such as nologin, is not a shell.
_NOISE = re.compile(
    rb"\[[^\]\s]+\] (?:plm:rsh: Warning: setpgid\(\d+,\d+\) failed in parent with errno=Permission denied\(13\)"
    rb"|WARNING: (?:local|rsh|ssh) probe returned unhandled shell[:;].* assuming bash)\r?\n"
)
_RULE = re.compile(rb"-{20,}\r?\n")
_LOST = re.compile(rb"\w+ has lost communication with a remote daemon")
_DAEMON = re.compile(rb"\s*Remote daemon: .* on node (\S+)")
#: Maximum length of mpirun's messages between two rules, in lines.
_LONGEST_MESSAGE = 60


class Words:
    """Shorten the output of mpirun and its daemons.

    When a daemon is lost, mpirun and its daemons print ten lines about possible network problems. These lines are
    replaced by one line, because the toolkit of the daemon's host reports why the daemon ended.
    """

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._inside = False

    def shorten(self, pieces: list[bytes], final: bool) -> list[bytes]:
        """Return the lines to print.

        Args:
            pieces: The new output, line by line.
            final: Whether ``pieces`` is the end of the output.
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
    """Return the host whose daemon mpirun has lost, according to mpirun's shortened output (:class:`Words`).

    Return None if no daemon is lost.
    """
    match = re.search(r"^mpirun lost its daemon on (\S+)\.$", text, re.MULTILINE)
    return match[1] if match is not None else None
