"""Programs that are forked from a process which has imported TensorFlow: importing it again takes each of them seconds.

``command()`` returns what to run instead of Python; the rest of a test is as with a program of its own. Each fork is
a process with the program's arguments, variables, folder and descriptors, and ends as the program does; it is killed
with the process that stands for it. A fleetfit job forks its ranks in the same way.

- ``forked.py serve FD``: import TensorFlow and the Keras that ``TF_USE_LEGACY_KERAS`` chooses, then fork.
- ``forked.py SOCKET SCRIPT|-c ARGUMENTS``: stand for a program.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import warnings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Where the descriptors of a request are, before they get the numbers that the program has them under.
_APART = 200


def command(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the command that runs a Python program in a fork.

    Args:
        arguments: The program's file and its arguments, or ``-c`` and its text.
        environment: The variables that it will have. Those that are read during imports choose from what it is forked.
    """
    return [sys.executable, "-ISs", __file__, _place(environment), *arguments]


def _place(environment: Mapping[str, str]) -> str:
    """Return the socket of the process that has imported under these variables; start it for the first one."""
    import atexit
    import shutil
    import subprocess
    import tempfile

    from container.system.variables_read import is_read_at_load

    shared = {
        name: value
        for name, value in {**environment, "PYTHONUNBUFFERED": "1"}.items()
        if (is_read_at_load(name) and name != "PYTHONPATH") or name in ("HOME", "PATH")
    }
    key = json.dumps(shared, sort_keys=True)
    if key not in _places:
        folder = tempfile.mkdtemp(prefix="forked-", dir="/tmp")
        _places[key] = f"{folder}/socket"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(_places[key])
            listener.listen(64)
            words = [sys.executable, __file__, "serve", str(listener.fileno())]
            server = subprocess.Popen(
                words, env=shared, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[listener.fileno()]
            )
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        atexit.register(server.wait)
        atexit.register(server.kill)
    return _places[key]


#: The variables of imports → the socket of the process that has imported under them.
_places: dict[str, str] = {}


def _stand_for(place: str, arguments: list[str]) -> None:
    """Have a program run, and end as it does."""
    request = {"arguments": arguments, "environment": dict(os.environ), "cwd": os.getcwd()}
    given = [fd for fd in map(int, os.listdir("/proc/self/fd")) if os.path.exists(f"/proc/self/fd/{fd}")]
    given = [fd for fd in given if os.get_inheritable(fd)]
    letter = os.memfd_create("request")
    os.write(letter, json.dumps({**request, "descriptors": given}).encode())
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(place)
    socket.send_fds(sock, [b"."], [letter, *given])
    answer = b""
    pid = 0
    signal.signal(signal.SIGTERM, lambda number, frame: os.kill(pid, number) if pid else sys.exit(128 + number))
    while b"\n" not in (answer := answer + (got := sock.recv(64))):
        assert got, "the process that forks has ended"
    pid = int(answer)
    status = int(sock.recv(64) or signal.SIGKILL)
    if os.WIFSIGNALED(status):
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL) if os.WTERMSIG(status) != signal.SIGKILL else None
        os.kill(os.getpid(), os.WTERMSIG(status))
    sys.exit(os.waitstatus_to_exitcode(status))


def _serve(listener: socket.socket) -> tuple[list[str], list[str]] | None:
    """Fork until the tests are over. Returns only in a fork: the program's arguments, and where it imports from."""
    import ctypes
    import gc

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    gc.set_threshold(100_000)  # as quick/sitecustomize.py does
    import tensorflow as tf

    assert "TF_USE_LEGACY_KERAS" not in os.environ or tf.keras.Model  # else each program chooses
    gc.freeze()
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    connections: dict[int, tuple[socket.socket, int, int]] = {}  # by both of their descriptors
    while True:
        for fd, _ in poll.poll():
            if fd == listener.fileno():
                sock, _ = listener.accept()
                _, found, _, _ = socket.recv_fds(sock, 1, 64)
                with warnings.catch_warnings():  # libraries stop their threads for a fork
                    warnings.simplefilter("ignore")
                    pid = os.fork()
                if pid == 0:
                    listener.close()
                    for one, *_ in connections.values():
                        one.close()
                    return _become(sock, found)
                sock.send(b"%d\n" % pid)
                for one in found:
                    os.close(one)
                ended = os.pidfd_open(pid)
                connections[ended] = connections[sock.fileno()] = sock, ended, pid
                poll.register(ended, select.POLLIN)
                poll.register(sock, select.POLLHUP)
            elif fd in connections:
                sock, ended, pid = connections[fd]
                if fd != ended:  # the process that stands for it was killed
                    os.kill(pid, signal.SIGKILL)
                _, status = os.waitpid(pid, 0)
                for one in (ended, sock.fileno()):
                    poll.unregister(one)
                    del connections[one]
                with contextlib.suppress(OSError):
                    sock.send(b"%d" % status)
                sock.close()
                os.close(ended)


def _become(sock: socket.socket, found: list[int]) -> tuple[list[str], list[str]]:
    """Be the program's process."""
    import ctypes
    import fcntl

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    os.setpgid(0, 0)
    sock.close()
    with open(found[0], encoding="utf-8") as letter:
        letter.seek(0)
        request = json.load(letter)
    apart = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, _APART) for one in found[1:]]
    for one in found[1:]:
        os.close(one)
    for one, number in zip(apart, request["descriptors"], strict=True):
        os.dup2(one, number)
        os.close(one)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    return request["arguments"], os.environ.get("PYTHONPATH", "").split(os.pathsep)


if __name__ == "__main__":
    if sys.argv[1] != "serve":
        _stand_for(sys.argv[1], sys.argv[2:])
    _own = sys.path[0]
    _found = _serve(socket.socket(fileno=int(sys.argv[2])))
    assert _found is not None
    _arguments, _folders = _found
    import types

    _main = types.ModuleType("__main__")
    sys.modules["__main__"] = _main
    sys.path = [one for one in sys.path if one != _own or one in _folders]
    sys.path[:0] = [one for one in _folders if one and one not in sys.path]
    if _arguments[0] == "-c":
        _text, sys.argv, _file = _arguments[1], ["-c", *_arguments[2:]], "<string>"
        sys.path.insert(0, "")
    else:
        sys.argv, _file = _arguments, _arguments[0]
        with open(_file, encoding="utf-8") as _opened:
            _text = _opened.read()
        _main.__file__ = _file
        sys.path.insert(0, os.path.dirname(os.path.abspath(_file)))
    exec(compile(_text, _file, "exec", dont_inherit=True), _main.__dict__)
