"""Run one process of the cluster as a child of this wrapper: ``python -m container rank -- command…``.

The toolkit or mpirun starts one wrapper for each process. When the process that started the wrapper ends, the kernel
kills the wrapper. When the wrapper ends, the kernel kills the command.

The wrapper sends the command's output to the host's toolkit through separate pipes, because mpirun would split long
lines and multi-byte characters. The wrapper reports how the command ended *before* the wrapper itself ends. Thus the
toolkit learns of the first failure before mpirun kills the other ranks. Otherwise, the command runs as it would without
a wrapper. Imports are kept to a minimum, because every rank starts this program.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence

from container.contract import variables
from container.contract.messages import Message, encode
from container.system import processes
from container.system.connection import BlockingConnection, ask
from container.system.holding import hold

#: The variable with the process's name. The toolkit sets it for processes that the toolkit starts itself.
PROCESS = "FLEETFIT_PROCESS"

#: OpenMPI's components that create files in shared memory. The files' names contain only the machine and the local
#: rank.
_SHARED_MEMORY_COMPONENTS = ("btl_vader", "btl_sm", "osc_sm", "osc_rdma")

#: The file name of the importer's socket, in the folder of the host's socket.
IMPORTER = "importer"

#: The name of the file with this host's command, in the folder of the host's socket. NUL separates the words.
COMMAND_FILE = "command"

#: How long a wrapper whose command has failed waits for the toolkit's permission to exit, in seconds. The toolkit
#: normally answers within milliseconds. If the toolkit is stuck, the wrapper exits without permission.
VERDICT_TIMEOUT = 5.0

_PIPE_SIZE = 256 << 10

#: The ``oom_score_adj`` of ranks: the kernel kills them as if they used this many more thousandths of the machine's
#: memory. See proc(5).
_OUT_OF_MEMORY_SCORE = 300


def main(argv: list[str]) -> int:
    """Run the command after ``--``. In a rank that mpirun has started, run this host's command instead
    (:func:`host_command`).

    Returns:
        The exit code of the command, 127 if the command cannot be started, or 128 plus the signal's number if a signal
        killed the command.
    """
    processes.set_death_signal(signal.SIGKILL, os.getppid())
    command = host_command(os.environ) or argv[argv.index("--") + 1 :]
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(os.environ[variables.HOST_SOCKET])
    toolkit = BlockingConnection(sock)

    output_read, output_write = os.pipe()
    events_read, events_write = os.pipe()
    _enlarge(output_write)
    hello = {"op": "rank", "name": process_name(os.environ), "pid": os.getpid()}
    toolkit.send(hello, descriptors=(output_read, events_read))
    os.close(output_read)
    os.close(events_read)

    env = dict(os.environ)
    env[variables.EVENTS] = f"{events_write}:{os.fstat(events_write).st_ino}"
    own = os.path.dirname(env.pop(variables.HOST_SOCKET))
    if own in (path := env.get("PATH", "").split(":")):  # the folder in which mpirun's daemon has found the wrapper
        path.remove(own)
        env["PATH"] = ":".join(path)
    env.pop(PROCESS, None)
    if folder := env.pop(variables.SHARED_MEMORY_DIR, None):
        # Set here instead of for mpirun, because mpirun would pass algo-1's folder to the ranks of every host.
        for component in _SHARED_MEMORY_COMPONENTS:
            env.setdefault(f"OMPI_MCA_{component}_backing_directory", folder)
    if (folder := env.pop(variables.USERS_TMPDIR, None)) is not None:
        del env["TMPDIR"]
        if folder:
            env["TMPDIR"] = folder
    if limit := env.pop(variables.USERS_OPEN_FILES, None):
        _allow_open_files(int(limit))
    for users in [name for name in env if name.startswith(variables.USERS_PREFIX)]:
        name = users[len(variables.USERS_PREFIX) :]
        env[name] = env.pop(users)
        if not env[name]:
            del env[name]
    if folder := env.pop(variables.CODE_DIR, None):
        os.chdir(folder)
        env["PWD"] = folder
    if channels := env.pop(variables.PIPE_CHANNELS, None):
        use_own_pipes(env, channels.split(","))
    if mask := env.pop(variables.UMASK, None):
        os.umask(int(mask, 8))
    prefer_as_victim()
    place_read = place_write = -1
    if place := env.pop(variables.PLACE, None):
        if place == "ready" and os.path.basename(command[0]).startswith("python"):
            place_read, place_write = os.pipe()
            env[variables.PLACE_FD] = str(place_read)
        elif not _await_place(toolkit, env):
            return 128 + signal.SIGTERM
    order = _Order(is_shell(command))
    signal.signal(signal.SIGTERM, order.take)
    hold("rank.before_start")
    descriptors = (events_write, place_read) if place_read >= 0 else (events_write,)
    importer = _Importer(toolkit, place_write, order)
    process: Spawned | Forked | None = importer.fork(command, env, (output_write, *descriptors))
    if importer.signalled:
        return importer.leave()
    if process is None:
        try:
            process = Spawned(
                processes.spawn(
                    command, env=env, stdout=output_write, stderr=output_write, pass_fds=descriptors, new_group=True
                )
            )
        except OSError as error:
            toolkit.send({"op": "failed", "errno": error.errno, "path": str(error.filename)})
            _await_verdict(toolkit)
            return 127
    order.child = process.pid
    os.close(output_write)
    os.close(events_write)
    if place_read >= 0:
        os.close(place_read)
    toolkit.send({"op": "started", "pid": order.child})
    if order.told:  # SIGTERM was received while the child was being started
        _signal(order.child, signal.SIGTERM, order.of_group)
    return _follow(toolkit, process, order, place_write)


class _Order:
    """Forward SIGTERM from this wrapper to its command, and record that SIGTERM was received.

    Attributes:
        told: Whether the wrapper has received SIGTERM.
        of_group: Whether signals are sent to the command's whole process group. If the command is a shell, the whole
            group is signalled, because a shell does not forward SIGTERM. If the command is a Python script, only the
            script gets the signal, so that the script's helper processes live until the script has saved.
        child: The pid of the command. 0 if the command has not started.
    """

    def __init__(self, of_group: bool) -> None:
        self.told = False
        self.of_group = of_group
        self.child = 0

    def take(self, number: int, frame: object) -> None:
        """Handle SIGTERM: record the signal, and forward it to the command if the command has started."""
        self.told = True
        if self.child:
            _signal(self.child, number, self.of_group)


class Spawned:
    """A command that this wrapper has started itself, without an importer. Compare :class:`Forked`.

    Attributes:
        pid: The pid of the command.
        importer_gone: Always False. See :class:`Forked`.
    """

    importer_gone = False

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def wait(self) -> tuple[int, int]:
        """Wait for the end of the command. Return the command's wait status, and its peak memory in KiB."""
        _, status, usage = os.wait4(self.pid, 0)
        return status, usage.ru_maxrss


class Forked:
    """A process that the importer has forked for this wrapper.

    Attributes:
        pid: The pid of the process.
        importer_gone: Whether the process has ended because the importer has ended.
    """

    def __init__(self, importer: BlockingConnection, pid: int) -> None:
        self._importer = importer
        self.pid = pid
        self.importer_gone = False

    def wait(self) -> tuple[int, int]:
        """Wait for the end of the process. Return the process's wait status, and its peak memory in KiB."""
        answer = None
        with contextlib.suppress(OSError):
            answer = self._importer.receive()
        self.importer_gone = answer is None  # the importer was killed, which also killed the process
        return (int(answer["status"]), int(answer["max_rss_kb"])) if answer else (signal.SIGKILL, 0)


class _Importer:
    """Request the rank's process from the host's importer, and handle the toolkit's messages during the wait.

    The importer has imported the script's packages, and forks a process for each rank.

    Attributes:
        signalled: The number of the signal that was received for the command before the command started; 0 for none.
    """

    def __init__(self, toolkit: BlockingConnection, place_fd: int, order: _Order) -> None:
        self._toolkit = toolkit
        self._place_fd = place_fd
        self._order = order
        self._hold = False
        self._woken = -1
        self.signalled = 0

    def fork(self, command: Sequence[str], env: dict[str, str], descriptors: Sequence[int]) -> Forked | None:
        """Request a process for the rank. The importer forks the process when the imports are finished.

        Args:
            command: The rank's command.
            env: The rank's environment.
            descriptors: The descriptors for the rank's output, for its events, and optionally for its remaining
                variables.

        Returns:
            The process. None if there is no importer, or if it has refused the request or has ended: the rank must then
            be started without an importer. None also if a signal was received meanwhile (:attr:`signalled`): the rank
            must then not be started.
        """
        path = os.path.join(os.path.dirname(os.environ[variables.HOST_SOCKET]), IMPORTER)
        if not os.path.exists(path):
            return None
        self._toolkit.send({"op": "importing"})
        self._woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        sock = socket.socket(socket.AF_UNIX)
        importer = BlockingConnection(sock)
        try:
            sock.connect(path)
            ask(sock, {"argv": list(command), "environment": env, "pid": os.getpid()}, descriptors)
            while self._readable(importer) and importer.read():
                if answer := importer.take():
                    return Forked(importer, int(answer["pid"]))
        except OSError:  # the importer has ended
            pass
        finally:
            signal.set_wakeup_fd(-1)
            os.close(wake)
            os.close(self._woken)
        importer.close()
        return None

    def _readable(self, connection: BlockingConnection) -> bool:
        poll = select.poll()
        for source in (connection, self._toolkit, self._woken):
            poll.register(source, select.POLLIN)
        while not self._is_over():
            ready = dict(poll.poll())
            if self._toolkit.fileno() in ready:
                self._listen()
            if connection.fileno() in ready:
                return True
        return False

    def _is_over(self) -> bool:
        if self._order.told and not self.signalled:
            self.signalled = signal.SIGTERM
        return self.signalled != 0

    def _listen(self) -> None:
        if not self._toolkit.read():  # the toolkit has ended
            self.signalled = signal.SIGKILL
        while (message := self._toolkit.take()) is not None:
            if message["op"] == "place":
                os.write(self._place_fd, encode(message["environment"]))
            elif message["op"] == "signal":
                self._hold = True
                self.signalled = int(message["number"])

    def leave(self) -> int:
        """Report that a signal was received before the command started. Wait for permission to exit, and return the
        exit code.
        """
        with contextlib.suppress(OSError):
            self._toolkit.send(_end(None, self.signalled, told=True, max_rss_kb=0))
            _await_verdict(self._toolkit, None if self._hold else VERDICT_TIMEOUT)
        return 128 + self.signalled


def is_shell(command: Sequence[str]) -> bool:
    """Return whether a command is a shell script. The training then runs in child processes of the shell."""
    return command[0] == "/bin/sh" or command[0].endswith(".sh")


def process_name(environ: os._Environ[str] | dict[str, str]) -> str:
    """Return the process's name, such as ``rank 3``, from the toolkit's or mpirun's variables (OpenMPI 4 and 5)."""
    if name := environ.get(PROCESS):
        return name
    rank = environ.get("OMPI_COMM_WORLD_RANK") or environ.get("PMIX_RANK") or "0"
    return f"rank {rank}"


def use_own_pipes(env: dict[str, str], channels: list[str]) -> None:
    """Set the variables of channels to the FIFOs of this rank, if each rank has separate FIFOs
    (:mod:`container.contract.pipes`).

    Each rank's wrapper does this, because mpirun gives the same environment to all ranks of a host.
    """
    local_rank = env.get("OMPI_COMM_WORLD_LOCAL_RANK") or env.get(variables.LOCAL_RANK) or "0"
    for channel in channels:
        name = f"SM_CHANNEL_{channel.upper()}"
        folder, _, path = env.get(name, "").rpartition("/")
        if folder and os.path.isdir(f"{folder}/.rank-{local_rank}"):
            env[name] = f"{folder}/.rank-{local_rank}/{path}"


def host_command(environ: os._Environ[str] | dict[str, str]) -> list[str] | None:
    """Return this host's command, if the toolkit has written a command for ranks that mpirun starts. Otherwise return
    None.

    mpirun gives algo-1's command to every rank, but paths may differ between hosts.
    """
    if PROCESS in environ:
        return None
    try:
        with open(os.path.join(os.path.dirname(environ[variables.HOST_SOCKET]), COMMAND_FILE), "rb") as file:
            return os.fsdecode(file.read()).split("\0")
    except FileNotFoundError:
        return None


def _await_place(toolkit: BlockingConnection, env: dict[str, str]) -> bool:
    """Wait until the toolkit sends the variables that contain the worker's rank, and add these variables to ``env``.
    Return False if the toolkit has ended, or requests the worker to end.
    """
    while (message := toolkit.receive()) is not None:
        if message["op"] == "place":
            env.update(message["environment"])
            return True
        if message["op"] == "signal":
            break
    with contextlib.suppress(OSError):
        toolkit.send(_end(None, signal.SIGTERM, told=True, max_rss_kb=0))
    return False


def _end(exit_code: int | None, killed_by: int | None, *, told: bool, max_rss_kb: int) -> Message:
    number = None if killed_by is None else int(killed_by)
    return {"op": "ended", "exit_code": exit_code, "signal": number, "told": told, "max_rss_kb": max_rss_kb}


def _follow(toolkit: BlockingConnection, process: Spawned | Forked, order: _Order, place_fd: int = -1) -> int:
    child = process.pid
    poll = select.poll()
    poll.register(toolkit, select.POLLIN)
    child_fd = -1
    with contextlib.suppress(ProcessLookupError):  # the process and its importer were already killed
        child_fd = os.pidfd_open(child)
        poll.register(child_fd, select.POLLIN)
    hold = False
    while True:
        ready = dict(poll.poll() if child_fd >= 0 else [(child_fd, select.POLLIN)])
        if toolkit.fileno() in ready:
            if not toolkit.read():  # the toolkit has ended
                _signal(child, signal.SIGKILL, True)
                process.wait()
                return 128 + signal.SIGKILL
            while (message := toolkit.take()) is not None:
                if message["op"] == "place":
                    with contextlib.suppress(OSError):  # the command has ended
                        os.write(place_fd, encode(message["environment"]))
                elif message["op"] == "signal":
                    hold = True
                    number = int(message["number"])
                    _signal(child, number, order.of_group or number == signal.SIGKILL)
        if child_fd in ready:
            status, max_rss_kb = process.wait()
            break
    exit_code, killed_by = processes.decode_status(status)
    if killed_by == signal.SIGTERM and not order.told and not hold:
        # mpirun signals the command and this wrapper one after the other. Wait briefly, because the wrapper's signal
        # may follow.
        with contextlib.suppress(InterruptedError):
            select.select([], [], [], 0.05)
    end = _end(exit_code, killed_by, told=order.told, max_rss_kb=max_rss_kb)
    toolkit.send({**end, "importer_gone": process.importer_gone})
    code = exit_code if exit_code is not None else 128 + (killed_by or 0)
    if hold:
        # While the job is being stopped, mpirun must not notice that ranks end one by one: it would kill the others,
        # which may still be saving.
        _await_verdict(toolkit, None)
    elif code != 0:
        _await_verdict(toolkit)
    return code


def _await_verdict(toolkit: BlockingConnection, timeout: float | None = VERDICT_TIMEOUT) -> None:
    """Wait for the toolkit's permission to exit. Stop waiting if the connection ends or the time limit is reached."""
    with contextlib.suppress(OSError):
        while (message := toolkit.receive(timeout)) is not None and message["op"] != "release":
            pass


def _signal(child: int, number: int, group: bool) -> None:
    with contextlib.suppress(ProcessLookupError):
        if group:
            os.killpg(child, number)
        else:
            os.kill(child, number)


def _allow_open_files(number: int) -> None:
    """Restore the user's limit of open descriptors for the command."""
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (number, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def prefer_as_victim() -> None:
    """Make the kernel kill this process and its children first when memory runs out, before the toolkit or the
    supervisor.
    """
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:
        if int(file.read()) < _OUT_OF_MEMORY_SCORE:
            file.seek(0)
            file.write(str(_OUT_OF_MEMORY_SCORE))


def _enlarge(fd: int) -> None:
    """Request a larger buffer for a pipe. If the request fails, the default of 64 KiB is used, which is slower."""
    import fcntl

    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
