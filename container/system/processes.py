"""Start processes that cannot outlive us, and end whole trees of them.

The guarantee: after :func:`become_subreaper`, every descendant of this process, whatever it does (double forks,
``setsid``), stays a descendant, and :func:`end_descendants` ends all of them. Processes started by :func:`spawn` get
a death signal, so that they end when this process is killed; what *they* leave behind is adopted by the next
subreaper up.
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
from collections.abc import Callable, Collection, Mapping, Sequence

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")


def set_death_signal(number: int, parent: int) -> None:
    """Have the kernel send this process ``number`` when the thread that forked it ends.

    Args:
        number: The signal.
        parent: The pid of the parent at the time of the fork. If it is already gone, the signal is sent at once:
            the kernel would never do it (prctl(2), PR_SET_PDEATHSIG).
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def set_name(text: str) -> None:
    """Give this process a name, which ps and top show (prctl(2), PR_SET_NAME); 15 bytes of it are kept."""
    _libc.prctl(_PR_SET_NAME, os.fsencode(text), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))


def allow_open_files(wanted: int) -> None:
    """Raise this process's limit of open descriptors as far as it may, if it is lower; children inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def become_subreaper() -> None:
    """Make orphaned descendants our children instead of init's (prctl(2), PR_SET_CHILD_SUBREAPER)."""
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
        death_signal: What the kernel sends it when the calling *thread* ends (call from the main thread); 0 for
            nothing, for a program that watches a lifeline and has to tidy up first.
        new_session: Whether it leads a session of its own.
        new_group: Whether it leads a process group of its own.
        nice: How much to lower its priority.
        blocked: Signals that wait until it takes them; all others reach it.

    Returns:
        The child's pid; the caller reaps it.

    Raises:
        OSError: the program could not be started; ``filename`` is ``argv[0]``, or ``cwd`` if that was at fault.
    """
    error_read, error_write = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        streams = (stdin, stdout, stderr)
        _exec_child(
            error_write, parent, argv, env, cwd, streams, pass_fds, death_signal, new_session, new_group, nice, blocked
        )
    os.close(error_write)
    report = b""
    try:
        while chunk := os.read(error_read, 4096):
            report += chunk
    finally:
        os.close(error_read)
    if report:
        os.waitpid(pid, 0)
        stage, number, text = report.decode("utf-8", "replace").split(":", 2)
        failed = str(cwd) if stage == "cwd" else argv[0]
        raise OSError(int(number), text, failed)
    return pid


def _exec_child(
    error_write: int,
    parent: int,
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str | os.PathLike[str] | None,
    streams: tuple[int | None, int | None, int | None],
    pass_fds: Sequence[int],
    death_signal: int,
    new_session: bool,
    new_group: bool,
    nice: int,
    blocked: Collection[int],
) -> None:
    """Run the child's side of :func:`spawn`; never returns."""
    stage = "exec"
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        set_death_signal(death_signal, parent)
        if new_session:
            os.setsid()
        elif new_group:
            os.setpgid(0, 0)
        if nice:
            os.nice(nice)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP, signal.SIGPIPE, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        wanted = [os.open(os.devnull, os.O_RDONLY) if streams[0] is None else streams[0], streams[1], streams[2]]
        # Move the sources out of the way first, so that no dup2 overwrites one that is still needed.
        sources = [None if fd is None else os.dup(fd) if fd > 2 else _dup_above(fd) for fd in wanted]
        for target, source in enumerate(sources):
            if source is not None:
                os.dup2(source, target, inheritable=True)
        for fd in pass_fds:
            os.set_inheritable(fd, True)
        if cwd is not None:
            stage = "cwd"
            os.chdir(cwd)
            stage = "exec"
        os.execvpe(argv[0], list(argv), dict(env))
    except OSError as error:
        _report_error(error_write, f"{stage}:{error.errno or errno.EINVAL}:{error.strerror or error}")
    except Exception as error:  # noqa: BLE001 - whatever it is (a NUL, text that has no bytes), the parent must say it
        _report_error(error_write, f"{stage}:{errno.EINVAL}:{error}")
    finally:
        os._exit(127)


def _report_error(error_write: int, text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(error_write, text.encode("utf-8", "replace")[:2000])


def _dup_above(fd: int) -> int:
    import fcntl

    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)


def children_by_parent() -> dict[int, list[int]]:
    """Return every process of the machine that we may see, by parent pid."""
    tree: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            stat = _read(f"/proc/{entry}/stat")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        # The command's name may hold spaces and parentheses: the fields start after the last one.
        fields = stat[stat.rindex(b")") + 2 :].split()
        if fields[0] != b"Z":
            tree.setdefault(int(fields[1]), []).append(int(entry))
    return tree


def state(pid: int) -> str:
    """Return the kernel's letter for a process's state: ``T`` if it is stopped, ``Z`` if it has ended; empty without
    one.

    See proc(5), ``/proc/PID/stat``.
    """
    try:
        stat = _read(f"/proc/{pid}/stat")
    except OSError:
        return ""
    return stat[stat.rindex(b")") + 2 :][:1].decode()


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, for example by SIGSTOP."""
    return state(pid) == "T"


def catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal."""
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"SigCgt:"):
                    return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def began(pid: int) -> str:
    """Return when a process began, in ticks since the machine's start; empty without one.

    Together with the pid, which another may have by now, it is a process's name.
    """
    try:
        stat = _read(f"/proc/{pid}/stat")
    except OSError:
        return ""
    return stat[stat.rindex(b")") + 2 :].split()[19].decode()


def lives(pid: int, when: str) -> bool:
    """Return whether the process runs that had a pid when :func:`began` said so."""
    return began(pid) == when and state(pid) != "Z"


def name(pid: int) -> str:
    """Return the name of a process, at most 15 characters: ``python3``; empty without one."""
    try:
        return _read(f"/proc/{pid}/comm").decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _read(path: str) -> bytes:
    """Read a small file of /proc. Hundreds are read when a job ends, so no file object, which would make more system
    calls.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


def descendants(root: int | None = None, *, spare: Collection[int] = ()) -> list[int]:
    """Return the living descendants of a process (default: this one), parents before children, without the spared
    trees.
    """
    tree = children_by_parent()
    found: list[int] = []
    queue = [pid for pid in tree.get(root if root is not None else os.getpid(), ()) if pid not in spare]
    while queue:
        pid = queue.pop(0)
        found.append(pid)
        queue.extend(tree.get(pid, ()))
    return found


def end_descendants(
    *,
    spare: Collection[int] = (),
    deadline: float = 2.0,
    reaped: Callable[[int, int], None] | None = None,
) -> list[int]:
    """Kill every descendant of this process with SIGKILL until none is left.

    Args:
        spare: Children that are left alone, with everything below them.
        deadline: Seconds after which to give up (a process in uninterruptible sleep cannot be killed).
        reaped: Called with pid and wait status of every child that is reaped on the way.

    Returns:
        The pids that are still there, normally none.
    """
    until = time.monotonic() + deadline
    pause = 0.0005
    while reap(reaped):
        left = descendants(spare=spare)
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not left or time.monotonic() > until:
            reap(reaped)
            return left
        time.sleep(pause)  # the kernel needs a moment to take them down
        pause = min(pause * 2, 0.02)
    return []  # a subreaper without children has no descendants: orphans would be its children


def end_tree(process: int, pid: int, *, deadline: float = 2.0) -> list[int]:
    """Kill a process that is no child of this one, and every descendant that it has, with SIGKILL.

    Args:
        process: A descriptor of the process, which tells whether it is there.
        pid: Its pid.
        deadline: Seconds after which to give up.

    Returns:
        The pids that are still there, normally none.

    Raises:
        ValueError: it is no process's number: 0 is the parent of all.
    """
    if pid <= 0:
        raise ValueError(f"{pid} is not a process id")
    until = time.monotonic() + deadline
    poll = select.poll()
    poll.register(process, select.POLLIN)
    while not poll.poll(0):
        left = descendants(pid)
        for one in left or [pid]:  # itself when it has none: they would be others' children
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(one, signal.SIGKILL)
        if time.monotonic() > until:
            return [*left, pid]
        poll.poll(10)
    return []


def reap(reaped: Callable[[int, int], None] | None = None) -> bool:
    """Collect every child that has ended, adopted ones included.

    Returns:
        Whether there are children that have not ended.
    """
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True
        if reaped is not None:
            reaped(pid, status)


def decode_status(status: int) -> tuple[int | None, int | None]:
    """Return ``(exit code, None)`` or ``(None, signal)`` for a wait status."""
    if os.WIFSIGNALED(status):
        return None, os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None
