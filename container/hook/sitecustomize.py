"""Reports an uncaught exception to the toolkit, in a Python process of a training job.

The toolkit puts this folder first on ``PYTHONPATH`` of every rank, so that Python's own ``site`` module imports this
file when the interpreter starts: the script needs no decorator. It takes its folder out of the path again, hands over
to the ``sitecustomize`` that would have been imported without it, and adds a ``sys.excepthook`` that writes one event
line before it calls the hook that was there.

Whatever Python a shell script starts imports this as well: it keeps to what Python 3.6 knows.

A fault in here must never become the script's: what cannot be reported is not, and the toolkit falls back on what the
process printed.
"""

import os
import sys
import time

_VARIABLE = "FLEETFIT_EVENTS"  # container.contract.variables.EVENTS; nothing of ours can be imported here
_STACK_SIGNAL = "FLEETFIT_STACK_SIGNAL"  # container.contract.variables.STACK_SIGNAL
_PLACE_FD = "FLEETFIT_PLACE_FD"  # container.contract.variables.PLACE_FD
_LINE_LIMIT = 60_000  # bytes
_MESSAGE_LIMIT = 1_000  # characters of its beginning, and of its end: TensorFlow says there what went wrong
_WRITE_TIMEOUT_MS = 2_000  # how long the toolkit may take nothing before the rest is dropped


def _leave_the_path() -> None:
    """Remove this folder from ``sys.path`` and from what child processes inherit."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    sys.path_importer_cache.pop(here, None)
    inherited = os.environ.get("PYTHONPATH")
    if inherited is not None:
        # An empty entry means the working directory: it stays.
        entries = [entry for entry in inherited.split(os.pathsep) if not entry or os.path.abspath(entry) != here]
        if entries:
            os.environ["PYTHONPATH"] = os.pathsep.join(entries)
        else:
            del os.environ["PYTHONPATH"]


def _install(target: str) -> None:
    """Put a reporting hook in front of the current ``sys.excepthook``.

    Args:
        target: ``fd:inode`` of the pipe.
    """
    previous = sys.excepthook

    def excepthook(kind, value, trace):  # type: ignore[no-untyped-def]
        try:
            if _is_uncaught(sys._getframe()) and not issubclass(kind, (KeyboardInterrupt, SystemExit)):
                _report(target, kind, value, trace)
        except BaseException:  # noqa: BLE001 - the script must end as it would have, whatever is wrong here
            pass
        previous(kind, value, trace)

    sys.excepthook = excepthook


def _is_uncaught(frame) -> bool:  # type: ignore[no-untyped-def]
    """Whether the interpreter itself called the hook, be it through a hook of the script's that chains to ours.

    Args:
        frame: The hook's own frame.
    """
    if hasattr(sys, "ps1"):
        return False  # a prompt goes on after an exception
    if frame.f_back is None:
        return True
    while frame.f_back is not None:
        frame = frame.f_back
    hook = sys.excepthook
    code = getattr(hook, "__code__", None) or getattr(type(hook).__call__, "__code__", None)
    return frame.f_code is code


def _report(target: str, kind, value, trace) -> None:  # type: ignore[no-untyped-def]
    _send(target, _line(kind, value, trace))


def _send(target: str, line: bytes) -> None:
    import stat

    number, _, inode = target.partition(":")
    fd = int(number)
    status = os.fstat(fd)
    if status.st_ino != int(inode) or not stat.S_ISFIFO(status.st_mode):
        return  # the script closed it, and the number is something else's by now
    _write(fd, line)


def _line(kind, value, trace) -> bytes:  # type: ignore[no-untyped-def]
    """The event, at most :data:`_LINE_LIMIT` bytes: the end of the traceback is what is kept."""
    import json
    import traceback

    name = kind.__qualname__
    if kind.__module__ not in ("builtins", "__main__"):
        name = f"{kind.__module__}.{name}"
    try:
        message = str(value)
    except Exception:  # noqa: BLE001 - a __str__ of the script's may raise anything
        message = "<its message cannot be printed>"
    if len(message) > 2 * _MESSAGE_LIMIT:
        message = f"{message[:_MESSAGE_LIMIT]}…{message[-_MESSAGE_LIMIT:]}"
    text = "".join(traceback.format_exception(kind, value, trace))
    room = _LINE_LIMIT
    while True:
        kept = text if len(text) <= room else "…\n" + text[len(text) - room :]
        data = {"pid": os.getpid(), "type": name, "message": message, "traceback": kept}
        line = json.dumps({"kind": "exception", "data": data}, separators=(",", ":")).encode() + b"\n"
        if len(line) <= _LINE_LIMIT or room == 0:
            return line
        room = room * 3 // 4  # escapes make the line longer than the text, by how much depends on the text


def _write(fd: int, line: bytes) -> None:
    """Write the whole line; up to PIPE_BUF bytes the kernel keeps it in one piece beside other writers' lines."""
    while line:
        try:
            line = line[os.write(fd, line) :]
        except BlockingIOError:
            import select

            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            if not poll.poll(_WRITE_TIMEOUT_MS):
                return


def _dump_stacks_on(number: int) -> None:
    """Print every thread's stack when the signal comes: the toolkit sends it to the ranks of a job that hangs."""
    import faulthandler

    try:  # noqa: SIM105 - contextlib is not imported at this point of a start
        faulthandler.register(number, file=2, all_threads=True, chain=False)
    except (ValueError, RuntimeError, OSError):
        pass  # no such signal here, or no standard error


class _Imports:
    """Tells the toolkit now and then that modules are being imported, which under load may take long in silence.

    It stands first in ``sys.meta_path``, finds nothing, and counts each name once: what is tried again and again is no
    progress.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self._names = set()  # type: ignore[var-annotated]
        self._next = 0.0

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        try:
            now = time.monotonic()
            if name not in self._names:
                self._names.add(name)
                if now >= self._next:
                    self._next = now + 1.0
                    _send(self._target, b'{"kind":"importing"}\n')
        except Exception:  # noqa: BLE001 - the script must import as it would have, whatever is wrong here
            pass


class _Place:
    """Lets an elastic worker wait for its place where the script first calls ``hvd.init()``.

    By then the script has imported all that it needs; the others go on training until it is able to join them. It
    stands in ``sys.meta_path`` until Horovod is imported.

    Args:
        fd: Where the rest of the environment comes as a line of JSON: the rank, and where to meet.
        target: ``fd:inode`` of the pipe for events.
    """

    def __init__(self, fd: int, target: str) -> None:
        self._fd = fd
        self._target = target
        self._sockets = set()  # type: ignore[var-annotated]

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != "horovod.common.basics":
            return None
        from importlib.machinery import PathFinder

        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module):  # type: ignore[no-untyped-def]
                load(module)
                self._wrap(module.HorovodBasics)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def _wrap(self, basics) -> None:  # type: ignore[no-untyped-def]
        init, shutdown = basics.init, basics.shutdown

        def meet(*args, **kwargs):  # type: ignore[no-untyped-def]
            self.wait()
            before = _sockets()
            try:
                return init(*args, **kwargs)
            finally:
                self._sockets = _sockets() - before

        def part(*args, **kwargs):  # type: ignore[no-untyped-def]
            try:
                return shutdown(*args, **kwargs)
            finally:
                _hang_up(self._sockets)

        basics.init, basics.shutdown = meet, part
        # To Horovod each worker is a host of its own; scripts choose devices by the slot of the real one.
        for name, variable in (("local_rank", "FLEETFIT_LOCAL_RANK"), ("local_size", "FLEETFIT_LOCAL_SIZE")):
            if os.environ.get(variable, "").isdecimal():
                setattr(basics, name, _constant(getattr(basics, name), int(os.environ[variable])))

    def wait(self) -> None:
        """Say that this worker is ready, and wait for its place; the process ends where there will be none."""
        if self._fd < 0:
            return
        import json

        _send(self._target, b'{"kind":"worker_ready","data":{}}\n')
        with os.fdopen(self._fd, "rb") as file:
            self._fd = -1
            line = file.readline()
        if not line.endswith(b"\n"):
            os._exit(0)
        os.environ.update(json.loads(line.decode()))


def _sockets():  # type: ignore[no-untyped-def]
    """The sockets of this process, as ``(descriptor, inode)``."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            link = os.readlink("/proc/self/fd/" + name)
        except OSError:  # closed meanwhile
            continue
        if link.startswith("socket:"):
            found.add((int(name), link))
    return found


def _hang_up(sockets) -> None:  # type: ignore[no-untyped-def]
    """Let the other ends of sockets know that nobody is here any more.

    Horovod keeps its connections to the other ranks when it shuts down after one has died, until it meets the others
    anew. One that waits for this rank, and not for the dead one, would not come to that before its timeout.
    """
    import socket

    for fd, _ in sockets & _sockets():
        try:
            with socket.socket(fileno=os.dup(fd)) as end:
                end.shutdown(socket.SHUT_RDWR)
        except OSError:  # a listening one, or one whose other end is gone
            pass


def _constant(method, value):  # type: ignore[no-untyped-def]
    import functools

    @functools.wraps(method)
    def known(self):  # type: ignore[no-untyped-def]
        method(self)  # which complains if Horovod has not been initialized
        return value

    return known


def _hand_over() -> None:
    """Import the ``sitecustomize`` that would have been imported without this one.

    Raises:
        ImportError: there is none; ``site`` takes that, with this name, for the normal case, and the import system
            takes this module out of ``sys.modules``. Anything that the other one raises goes on to ``site`` as well.
    """
    del sys.modules["sitecustomize"]
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401


if __name__ == "sitecustomize":
    _leave_the_path()
    try:
        _hand_over()
    finally:
        _target = os.environ.get(_VARIABLE)
        if _target:
            _install(_target)
        _signal = os.environ.get(_STACK_SIGNAL)
        if _signal:
            _dump_stacks_on(int(_signal))
            if _target:
                sys.meta_path.insert(0, _Imports(_target))
        _fd = os.environ.pop(_PLACE_FD, None)
        if _fd and _target:
            # Where container.distributed finds it: this module is not in sys.modules any more.
            sys._fleetfit_place = _Place(int(_fd), _target)  # type: ignore[attr-defined]
            sys.meta_path.insert(0, sys._fleetfit_place)  # type: ignore[attr-defined]
