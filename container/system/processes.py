"""Start processes that cannot outlive this process, and kill whole trees of processes.

After :func:`become_subreaper`, every descendant of this process stays a descendant, whatever it does (double forks,
``setsid``). :func:`end_descendants` therefore kills all descendants. Processes started by :func:`spawn` get a death
signal, so that they end when this process is killed. The next subreaper above this process then adopts the child
processes of the ended processes.
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
#: The place of the number of threads in the result of :func:`stat`.
_THREADS = 17

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")


def set_death_signal(number: int, parent: int) -> None:
    """Make the kernel send a signal to this process when the thread that forked this process ends.

    Args:
        number: The number of the signal.
        parent: The pid of the parent at the time of the fork. If the parent has already ended, the signal is sent at
            once, because the kernel would never send it (prctl(2), PR_SET_PDEATHSIG).
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def set_name(text: str) -> None:
    """Set this process's name as ps and top show it (prctl(2), PR_SET_NAME). The name is cut to 15 bytes."""
    _libc.prctl(_PR_SET_NAME, os.fsencode(text), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))


def allow_open_files(wanted: int) -> None:
    """Raise this process's limit of open descriptors to ``wanted``, or to the hard limit if the hard limit is lower
    than ``wanted``.

    A limit above ``wanted`` is not changed. Children inherit the limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def become_subreaper() -> None:
    """Make this process, instead of init, the parent of its orphaned descendants (prctl(2), PR_SET_CHILD_SUBREAPER)."""
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
    """Start a program. By default, the kernel kills the program when this process ends.

    Args:
        argv: The command. ``argv[0]`` is looked up in the PATH of ``env``.
        env: The whole environment of the program.
        cwd: The working directory of the program.
        stdin: The descriptor for standard input. If None, ``/dev/null``.
        stdout: The descriptor for standard output. If None, that of this process.
        stderr: The descriptor for standard error. If None, that of this process.
        pass_fds: The descriptors that stay open in the program under the same numbers.
        death_signal: The signal that the kernel sends to the program when the calling *thread* ends. Therefore call
            this function from the main thread. If 0, no signal is sent. Use 0 for a program that notices the end of
            this process by a closed connection, and has to clean up first.
        new_session: Whether the program leads a new session.
        new_group: Whether the program leads a new process group.
        nice: The amount by which the program's priority is lowered.
        blocked: The signals that are blocked when the program starts. All other signals are unblocked.

    Returns:
        The pid of the program. The caller must collect its wait status.

    Raises:
        OSError: the program could not be started. ``filename`` is ``argv[0]``, or ``cwd`` if ``cwd`` has caused the
            error.
    """
    import subprocess  # not at the top, because a rank's wrapper imports this module but does not start programs

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
    process.returncode = 0  # so that subprocess does not collect the wait status, which the caller must collect
    return process.pid


def children_by_parent() -> dict[int, list[int]]:
    """Return a mapping from the pid of each parent to the pids of its children, for all visible processes of the
    machine. Zombies are omitted.

    A process whose first thread has ended while other threads still run is not omitted, although the kernel reports the
    process as a zombie. Its children still belong to it: the kernel gives them a new parent when the last thread ends.
    """
    tree: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := stat(int(entry))) and (fields[0] != "Z" or int(fields[_THREADS]) > 1):
            tree.setdefault(int(fields[1]), []).append(int(entry))
    return tree


def state(pid: int) -> str:
    """Return the kernel's letter for the state of a process, such as ``T`` if stopped and ``Z`` if ended (proc(5),
    ``/proc/PID/stat``).

    Return an empty text if the process does not exist.
    """
    return "".join(stat(pid)[:1])


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
    """Return the time at which a process started, in clock ticks since the machine's start. Return an empty text if the
    process does not exist.

    The time and the pid together identify a process, although the pid may be reused later.
    """
    return "".join(stat(pid)[19:20])


def lives(pid: int, when: str) -> bool:
    """Return whether a process is still running.

    Args:
        pid: The pid of the process.
        when: The time that :func:`began` has returned earlier for the process. The time distinguishes the process from
            a later process with the same pid.
    """
    return began(pid) == when and state(pid) != "Z"


def name(pid: int) -> str:
    """Return the name of a process, such as ``python3``, cut to 15 characters. Return an empty text if the process does
    not exist.
    """
    return _read(f"/proc/{pid}/comm").strip()


def stat(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat``, beginning with the state. Return an empty list if the process does not
    exist.
    """
    # The command's name may contain spaces and parentheses. The fields start after the last closing parenthesis.
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _read(path: str) -> str:
    """Read a small file of /proc. Return an empty text if the file does not exist.

    Hundreds of files are read when a job ends. No file object is used, because it would make more system calls.
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
    """Return the pids of the living descendants of a process, parents before children.

    Args:
        root: The pid of the process. If None, this process.
        spare: The pids of children of ``root`` that are omitted. The descendants of these children are omitted too.
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
    """Kill every descendant of this process with SIGKILL, until no descendant exists or the deadline has passed.

    Args:
        spare: The pids of children that are not killed. The descendants of these children are not killed either.
        deadline: The time in seconds after which to give up. A process in uninterruptible sleep cannot be killed.

    Returns:
        The pids of descendants that still exist (normally none), and the wait status of every child that was collected,
        by pid.
    """
    until = time.monotonic() + deadline
    pause = 0.0005
    ended: dict[int, int] = {}
    while True:
        reaped, any_left = reap()
        ended.update(reaped)
        # A subreaper without children has no descendants, because orphaned descendants become its children.
        left = descendants(spare=spare) if any_left else []
        if not left or time.monotonic() > until:
            ended.update(reap()[0])
            return left, ended
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(pause)  # the kernel needs a moment to remove the killed processes
        pause = min(pause * 2, 0.02)


def end_tree(process: int, pid: int, *, patience: float = 0.0, deadline: float = 2.0) -> list[int]:
    """Kill a process that is not a child of this process, and all descendants of that process, with SIGKILL.

    Args:
        process: A descriptor of the process (pidfd), which becomes readable when the process has ended.
        pid: The pid of the process.
        patience: The time in seconds that the process gets to end by itself.
        deadline: How long to send SIGKILL again and again before giving up, in seconds.

    Returns:
        The pids of processes that still exist. Normally the list is empty.

    Raises:
        ValueError: ``pid`` is not positive.
    """
    if pid <= 0:
        raise ValueError(f"{pid} is not a process id")
    poll = select.poll()
    poll.register(process, select.POLLIN)
    poll.poll(patience * 1000)
    until = time.monotonic() + deadline
    while not poll.poll(0):
        left = descendants(pid)
        for one in left or [pid]:  # the process itself last, because other processes would adopt its descendants
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(one, signal.SIGKILL)
        if time.monotonic() > until:
            return [*left, pid]
        poll.poll(10)
    return []


def reap() -> tuple[dict[int, int], bool]:
    """Collect the wait statuses of all children that have ended, including adopted children.

    Returns:
        The wait status of each child that has ended, by pid, and whether other children still run.
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
    """Convert a wait status to ``(exit code, None)``, or to ``(None, signal)`` if a signal killed the process."""
    if os.WIFSIGNALED(status):
        return None, os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None
