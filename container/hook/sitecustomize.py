"""Reports an uncaught exception to the toolkit, in a Python process of a training job.

What else is told of such a process is beside this file: whether it joins the others (``_fleetfit_evidence``), and what
became of its arguments (``_fleetfit_arguments``).

The toolkit puts this folder first on ``PYTHONPATH`` of every rank, so that Python's own ``site`` module imports this
file when the interpreter starts: the script needs no decorator. It takes its folder out of the path again, hands over
to the ``sitecustomize`` that would have been imported without it, and adds a ``sys.excepthook`` that writes one event
line before it calls the hook that was there. It gives modules for those of SageMaker's that are not installed.

Whatever Python a shell script starts imports this as well: it keeps to what Python 3.6 knows.

A fault in here must never become the script's: what cannot be reported is not, and the toolkit falls back on what the
process printed.
"""

import os
import sys
import time

_VARIABLE = "FLEETFIT_EVENTS"  # container.contract.variables.EVENTS; nothing of ours can be imported here
_STACK_SIGNAL = "FLEETFIT_STACK_SIGNAL"  # container.contract.variables.STACK_SIGNAL
_EVIDENCE = "FLEETFIT_EVIDENCE"  # container.contract.variables.EVIDENCE
_PLACE_FD = "FLEETFIT_PLACE_FD"  # container.contract.variables.PLACE_FD
_IMPORTER = "FLEETFIT_IMPORTER"  # container.contract.variables.IMPORTER
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


class _LateTarget:
    """``fd:inode`` of the pipe for events, in a process that gets it after its imports: a fork of the importer's."""

    def __init__(self) -> None:
        self.text = ""

    def partition(self, separator):  # type: ignore[no-untyped-def]
        return self.text.partition(separator)


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
    if not number:
        return  # the importer itself
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


def _json(value) -> str:  # type: ignore[no-untyped-def]
    """The value as JSON. The script's folder is in the path, and a module ``json`` in it is not to be imported."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, dict):
        return "{" + ",".join(_json(str(name)) + ":" + _json(one) for name, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_json(one) for one in value) + "]"
    text = str(value).encode("utf-16-be", "surrogatepass")
    units = [text[place] << 8 | text[place + 1] for place in range(0, len(text), 2)]
    return '"' + "".join(chr(u) if 31 < u < 127 and u not in (34, 92) else f"\\u{u:04x}" for u in units) + '"'


def _evidence_watch():  # type: ignore[no-untyped-def]
    """``_fleetfit_evidence.watch``, while this folder is in the path."""
    try:
        from _fleetfit_evidence import watch  # type: ignore[import-not-found]
    except Exception:  # noqa: BLE001 - it is not looked at then
        return None
    return watch


def _arguments_watch():  # type: ignore[no-untyped-def]
    """``_fleetfit_arguments.wrap``, while this folder is in the path."""
    try:
        from _fleetfit_arguments import wrap  # type: ignore[import-not-found]
    except Exception:  # noqa: BLE001 - it is not looked at then
        return None
    del sys.modules["_fleetfit_arguments"]
    return wrap


class _Arguments:
    """Has what becomes of the script's arguments looked at, from where it imports argparse.

    It stands in ``sys.meta_path`` until then.

    Args:
        wrap: Wraps the module.
        target: ``fd:inode`` of the pipe for events.
    """

    def __init__(self, wrap, target: str) -> None:  # type: ignore[no-untyped-def]
        self._wrap = wrap
        self._target = target

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != "argparse":
            return None
        sys.meta_path.remove(self)
        return _spec_with(name, path, target, self.wrap)

    def wrap(self, module) -> None:  # type: ignore[no-untyped-def]
        try:  # noqa: SIM105 - contextlib is not imported at this point of a start
            self._wrap(module, self._tell)
        except Exception:  # noqa: BLE001 - it may be a module of the script's
            pass

    def _tell(self, text: str) -> None:
        _send(self._target, _json({"kind": "warning", "data": {"message": text}}).encode() + b"\n")


def _watch_evidence(watch, target: str):  # type: ignore[no-untyped-def]
    """Tell the toolkit whether this process joins the others of a job that is to be distributed."""

    def tell(data):  # type: ignore[no-untyped-def]
        try:  # noqa: SIM105 - contextlib is not imported at this point of a start
            _send(target, _json({"kind": "evidence", "data": data}).encode() + b"\n")
        except Exception:  # noqa: BLE001 - the toolkit is gone, say: the script must go on as it would have
            pass

    try:
        return watch(tell)
    except Exception:  # noqa: BLE001 - it is not looked at then
        return None


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
        sys.meta_path.remove(self)
        return _spec_with(name, path, target, lambda module: self._wrap(module.HorovodBasics))

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
            setattr(basics, name, _from_environment(getattr(basics, name), variable))

    def is_at(self, fd: int) -> None:
        """The rest of the environment comes here."""
        self._fd = fd

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


_SERVERS = "tensorflow.python.training.server_lib"


class _Servers:
    """Tells the toolkit when the script itself waits in ``tf.distribute.Server.join()``, which never returns.

    Such a script is a server, and is ended when the scripts that train have ended. It stands in ``sys.meta_path`` until
    TensorFlow's servers are imported.

    Args:
        target: ``fd:inode`` of the pipe for events.
    """

    def __init__(self, target: str) -> None:
        self._target = target

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != _SERVERS:
            return None
        sys.meta_path.remove(self)
        return _spec_with(name, path, target, lambda module: self.wrap(module.Server))

    def wrap(self, server) -> None:  # type: ignore[no-untyped-def]
        """Have its ``join()`` say that it serves."""
        import functools

        join = server.join

        @functools.wraps(join)
        def join_and_say_so(*args, **kwargs):  # type: ignore[no-untyped-def]
            import contextlib
            import threading

            if threading.current_thread() is threading.main_thread():
                # The script must serve as it would have, whatever is wrong here.
                with contextlib.suppress(Exception):
                    _send(self._target, b'{"kind":"serving","data":{"pid":%d}}\n' % os.getpid())
            return join(*args, **kwargs)

        server.join = join_and_say_so


#: SageMaker's modules that there are stand-ins for, and what these have.
_STAND_INS = {
    "sagemaker_tensorflow": (),
    "sagemaker_containers": ("sagemaker_containers.beta", "sagemaker_containers.beta.framework"),
    "sagemaker_training": ("sagemaker_training.environment",),
}


class _StandIns:
    """Gives modules of ours where a script imports SageMaker's, and there are none (``container/standins``).

    It stands last in ``sys.meta_path``: whatever is installed, or lies beside the script, is found before.

    Args:
        folder: Where ours are.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        top = name.partition(".")[0]
        if top not in _STAND_INS or (name != top and not self._is_ours(top)):
            return None
        if name != top:
            there = ", ".join((top,) + _STAND_INS[top])
            raise ModuleNotFoundError(
                f"there is no {name}: {top} is not installed, and fleetfit's replacement has only {there}. "
                f"Put {top.replace('_', '-')} into requirements.txt."
            )
        from importlib.util import spec_from_file_location

        file = os.path.join(self._folder, f"{top}.py")
        return spec_from_file_location(name, file, submodule_search_locations=[])

    def _is_ours(self, top: str) -> bool:
        file = getattr(sys.modules.get(top), "__file__", None) or ""
        return os.path.dirname(file) == self._folder


class _Spawning:
    """Lets the processes that multiprocessing spawns, which import the script without this hook, find the stand-ins.

    Their folder is the last of what such a process gets as ``sys.path``. This stands in ``sys.meta_path`` until
    multiprocessing is imported.

    Args:
        folder: Where the stand-ins are.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != "multiprocessing.spawn":
            return None
        sys.meta_path.remove(self)
        return _spec_with(name, path, target, self._wrap)

    def _wrap(self, spawn) -> None:  # type: ignore[no-untyped-def]
        import functools

        prepare = spawn.get_preparation_data

        @functools.wraps(prepare)
        def get_preparation_data(*args, **kwargs):  # type: ignore[no-untyped-def]
            data = prepare(*args, **kwargs)
            if isinstance(data.get("sys_path"), list):
                data["sys_path"].append(self._folder)  # a copy
            return data

        spawn.get_preparation_data = get_preparation_data


def _spec_with(name, path, target, then):  # type: ignore[no-untyped-def]
    """The spec of a module, whose loader calls ``then`` with the module once it is loaded."""
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec(name, path, target)
    if spec is not None and spec.loader is not None:
        load = spec.loader.exec_module

        def exec_module(module):  # type: ignore[no-untyped-def]
            load(module)
            then(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
    return spec


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


def _from_environment(method, variable):  # type: ignore[no-untyped-def]
    import functools

    @functools.wraps(method)
    def known(self):  # type: ignore[no-untyped-def]
        value = method(self)  # which complains if Horovod has not been initialized
        told = os.environ.get(variable, "")
        return int(told) if told.isdecimal() else value

    return known


def _hand_over() -> None:
    """Import the ``sitecustomize`` that would have been imported without this one.

    Raises:
        ImportError: there is none; ``site`` takes that, with this name, for the normal case, and the import system
            takes this module out of ``sys.modules``. Anything that the other one raises goes on to ``site`` as well.
    """
    del sys.modules["sitecustomize"]
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401


def _go_on(late, evidence) -> None:  # type: ignore[no-untyped-def]
    """Do what is left in a process that the importer has forked: what depends on the rank's own environment.

    Args:
        late: What those who report were given in place of the ``fd:inode`` of the pipe for events.
        evidence: What watches whether this process joins others; None if nothing does.
    """
    del sys._fleetfit_go_on  # type: ignore[attr-defined]
    _leave_the_path()
    late.text = os.environ[_VARIABLE]
    fd = os.environ.pop(_PLACE_FD, None)
    if fd and hasattr(sys, "_fleetfit_place"):
        sys._fleetfit_place.is_at(int(fd))
    if '"ps"' in os.environ.get("TF_CONFIG", ""):
        _watch_servers(late)
    if evidence is not None:
        evidence.go_on()


def _watch_servers(target: str) -> None:
    servers = _Servers(target)
    imported = sys.modules.get(_SERVERS)
    if imported is not None:
        servers.wrap(imported.Server)
    else:
        sys.meta_path.insert(0, servers)


if __name__ == "sitecustomize":
    _target = os.environ.get(_VARIABLE)
    if _IMPORTER in os.environ:
        _target = _LateTarget()  # type: ignore[assignment]
    _watch = _evidence_watch() if os.environ.get(_EVIDENCE) else None
    _evidence = None
    _arguments = _arguments_watch() if _target else None
    _standins = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "standins", "names")
    _leave_the_path()
    try:
        _hand_over()
    finally:
        sys.meta_path.append(_StandIns(_standins))
        sys.meta_path.insert(0, _Spawning(_standins))
        if _target:
            _install(_target)
        _signal = os.environ.get(_STACK_SIGNAL)
        if _signal:
            _dump_stacks_on(int(_signal))
            if _target:
                sys.meta_path.insert(0, _Imports(_target))
        if _target and '"ps"' in os.environ.get("TF_CONFIG", ""):
            _watch_servers(_target)
        _fd = os.environ.pop(_PLACE_FD, None)
        if _fd and _target:
            # Where container.distributed finds it: this module is not in sys.modules any more.
            sys._fleetfit_place = _Place(int(_fd), _target)  # type: ignore[attr-defined]
            sys.meta_path.insert(0, sys._fleetfit_place)  # type: ignore[attr-defined]
        if _target and _arguments is not None:
            _looking = _Arguments(_arguments, _target)
            if "argparse" in sys.modules:
                _looking.wrap(sys.modules["argparse"])
            else:
                sys.meta_path.insert(0, _looking)
        if _target and _watch is not None:
            _evidence = _watch_evidence(_watch, _target)  # the last: it asks those behind it
        if _IMPORTER in os.environ:  # the importer, which calls this in a fork that is to run a script
            sys._fleetfit_go_on = lambda: _go_on(_target, _evidence)  # type: ignore[attr-defined]
