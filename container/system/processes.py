"""Start processes that cannot outlive this one, and kill whole trees of processes.

The guarantee: after :func:`become_subreaper`, every descendant of this process, whatever it does (double forks,
``setsid``), stays a descendant, and :func:`end_descendants` kills all of them. Processes started by :func:`spawn` get
a death signal, so that they end when this process is killed; the next subreaper above adopts the processes
that *they* leave behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import select
import signal
import time
from collections.abc import Collection, Mapping, Sequence

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")


def set_death_signal(number: int, parent: int) -> None:
    """Make the kernel send this process ``number`` when the thread that forked it ends.

    Args:
        number: The signal.
        parent: The pid of the parent at the time of the fork. If the parent is already gone, the signal is sent
            at once, as the kernel would never send it (prctl(2), PR_SET_PDEATHSIG).
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def set_name(text: str) -> None:
    """Set this process's name, as ps and top show it (prctl(2), PR_SET_NAME), cut to 15 bytes."""
    _libc.prctl(_PR_SET_NAME, os.fsencode(text), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))


def allow_open_files(wanted: int) -> None:
    """Raise this process's limit of open descriptors to ``wanted`` if it is lower, or to the hard limit; children
    inherit it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def become_subreaper() -> None:
    """Make this process the parent of orphaned descendants, instead of init (prctl(2), PR_SET_CHILD_SUBREAPER)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | os.PathLike[str] | None = None,
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    pass_fds: Sequence[int] = (),
    death_signal: int = signal.SIGKILL,
    new_session: bool = False,
    new_group: bool = False,
    nice: int = 0,
    blocked: Collection[int] = (),
) -> int:
    """Start a program that ends when this process does.

    Args:
        argv: The command; ``argv[0]`` is looked up in ``env``'s PATH.
        env: The whole environment.
        cwd: The working directory.
        stdin: Descriptor for standard input; None means ``/dev/null``.
        stdout: Descriptor for standard output; None inherits.
        stderr: Descriptor for standard error; None inherits.
        pass_fds: Descriptors that stay open under the same number.
        death_signal: The signal that the kernel sends the program when the calling *thread* ends (call from the
            main thread). 0 is none, for a program that watches a lifeline and has to clean up first.
        new_session: Whether the program leads a new session.
        new_group: Whether the program leads a new process group.
        nice: The amount by which its priority is lowered.
        blocked: Signals that are blocked until the program accepts them; all others are unblocked.

    Returns:
        The child's pid; the caller must reap the child.

    Raises:
        OSError: the program could not be started; ``filename`` is ``argv[0]``, or ``cwd`` if that was at fault.
    """
    import subprocess  # not at the top, as a rank's wrapper starts nothing

    parent = os.getpid()

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        set_death_signal(death_signal, parent)
        if new_group and not new_session:
            os.setpgid(0, 0)
        if nice:
            os.nice(nice)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP, signal.SIGPIPE, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    try:
        process = subprocess.Popen(
            argv,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
            start_new_session=new_session,
            preexec_fn=prepare,
        )
    except (ValueError, subprocess.SubprocessError) as error:  # a NUL, or text that cannot be encoded
        raise OSError(errno.EINVAL, str(error), argv[0]) from error
    process.returncode = 0  # the caller reaps it
    return process.pid


def children_by_parent() -> dict[int, list[int]]:
    """Return the children of each process of the machine that is visible, by parent pid, without zombies."""
    tree: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(int(entry))) and fields[0] != "Z":
            tree.setdefault(int(fields[1]), []).append(int(entry))
    return tree


def state(pid: int) -> str:
    """Return the kernel's letter for a process's state: ``T`` if stopped, ``Z`` if ended; empty if there is no such
    process.

    See proc(5), ``/proc/PID/stat``.
    """
    return "".join(_stat(pid)[:1])


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, for example by SIGSTOP."""
    return state(pid) == "T"


def catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal."""
    try:
        # the file is long for a user with many groups
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            caught = next((line for line in file if line.startswith("SigCgt:")), "")
    except OSError:
        return False
    return bool(caught) and bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def began(pid: int) -> str:
    """Return when a process started, in clock ticks since the machine's start; empty if there is no such process.

    Together with the pid, which may be reused, this identifies a process.
    """
    return "".join(_stat(pid)[19:20])


def lives(pid: int, when: str) -> bool:
    """Return whether the process runs that had the pid when :func:`began` returned ``when``."""
    return began(pid) == when and state(pid) != "Z"


def name(pid: int) -> str:
    """Return the name of a process, at most 15 characters (``python3``); empty if there is no such process."""
    return _read(f"/proc/{pid}/comm").strip()


def _stat(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` from the state on; none if there is no such process."""
    # The command's name may hold spaces and parentheses: the fields start after the last one.
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _read(path: str) -> str:
    """Read a small file of /proc; return an empty text if it does not exist.

    Hundreds are read when a job ends, so no file object is used, which would make more system calls.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, 4096).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(fd)


def descendants(root: int | None = None, *, spare: Collection[int] = ()) -> list[int]:
    """Return the living descendants of a process, parents before children, without the spared trees.

    Args:
        root: The process; default: this one.
        spare: Children of ``root`` that are left out with their descendants.
    """
    tree = children_by_parent()
    found: list[int] = []
    queue = [pid for pid in tree.get(root if root is not None else os.getpid(), ()) if pid not in spare]
    while queue:
        pid = queue.pop(0)
        found.append(pid)
        queue.extend(tree.get(pid, ()))
    return found


def end_descendants(*, spare: Collection[int] = (), deadline: float = 2.0) -> tuple[list[int], dict[int, int]]:
    """Kill every descendant of this process with SIGKILL until none is left.

    Args:
        spare: Children that are not killed, nor their descendants.
        deadline: Seconds after which to give up (a process in uninterruptible sleep cannot be killed).

    Returns:
        The pids that are still there, normally none, and the wait status of every child that was reaped, by pid.
    """
    until = time.monotonic() + deadline
    pause = 0.0005
    ended: dict[int, int] = {}
    while True:
        reaped, any_left = reap()
        ended.update(reaped)
        # A subreaper without children has no descendants: orphans would be its children.
        left = descendants(spare=spare) if any_left else []
        if not left or time.monotonic() > until:
            ended.update(reap()[0])
            return left, ended
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(pause)  # the kernel needs a moment to remove them
        pause = min(pause * 2, 0.02)


def end_tree(process: int, pid: int, *, deadline: float = 2.0) -> list[int]:
    """Kill a process that is no child of this one, and all its descendants, with SIGKILL.

    Args:
        process: A descriptor of the process (pidfd), which is readable when the process has ended.
        pid: Its pid.
        deadline: Seconds after which to give up.

    Returns:
        The pids that are still there, normally none.

    Raises:
        ValueError: ``pid`` is not positive.
    """
    if pid <= 0:
        raise ValueError(f"{pid} is not a process id")
    until = time.monotonic() + deadline
    poll = select.poll()
    poll.register(process, select.POLLIN)
    while not poll.poll(0):
        left = descendants(pid)
        for one in left or [pid]:  # the process itself last: its descendants would become others' children
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(one, signal.SIGKILL)
        if time.monotonic() > until:
            return [*left, pid]
        poll.poll(10)
    return []


def reap() -> tuple[dict[int, int], bool]:
    """Collect every child that has ended, including adopted ones.

    Returns:
        The wait status of ended children by pid, and whether other children still run.
    """
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, False
        if pid == 0:
            return ended, True
        ended[pid] = status


def decode_status(status: int) -> tuple[int | None, int | None]:
    """Return ``(exit code, None)`` or ``(None, signal)`` for a wait status."""
    if os.WIFSIGNALED(status):
        return None, os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None
