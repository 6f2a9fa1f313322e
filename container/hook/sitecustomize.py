"""Report an uncaught exception to the toolkit, in a Python process of a training job.

Other modules in this folder report whether the process joins the others (``_fleetfit_evidence``), and how its arguments
were interpreted (``_fleetfit_arguments``).

The toolkit is fleetfit's process that starts the ranks of a host. It puts this folder first into ``PYTHONPATH`` of
every rank. Python's own ``site`` module then imports this file when the interpreter starts, and the script needs no
decorator. This module removes its folder from the path, and imports the ``sitecustomize`` that would otherwise have
been imported. Then the module installs a ``sys.excepthook`` that writes one event line before it calls the previous
hook. The module also provides replacements for SageMaker's modules that are not installed.

Any Python that a shell script starts imports this file as well. Therefore the code works with Python 3.6. An error in
this module must never reach the script. If an exception cannot be reported, the toolkit uses the process's output
instead.
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
_MESSAGE_LIMIT = 1_000  # characters kept at a message's beginning, and at its end, where TensorFlow names the cause
_WRITE_TIMEOUT_MS = 2_000  # how long to wait for the toolkit to read; then the rest of the line is dropped


def _leave_the_path() -> None:
    """Remove this folder from ``sys.path``, and from the ``PYTHONPATH`` that child processes inherit."""
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
    """The ``fd:inode`` of the pipe for events, in an importer and its forks.

    An importer is a process that imports a script's packages, and from which ranks are then forked. A fork gets the
    pipe when it is set up for its rank. Until then, ``text`` is empty.
    """

    def __init__(self) -> None:
        self.text = ""

    def partition(self, separator):  # type: ignore[no-untyped-def]
        return self.text.partition(separator)


def _install(target: str) -> None:
    """Install a ``sys.excepthook`` that reports an uncaught exception and then calls the previous hook.

    Args:
        target: The pipe for events, as ``fd:inode``.
    """
    previous = sys.excepthook

    def excepthook(kind, value, trace):  # type: ignore[no-untyped-def]
        try:
            if _is_uncaught(sys._getframe()) and not issubclass(kind, (KeyboardInterrupt, SystemExit)):
                _send(target, _line(kind, value, trace))
        except BaseException:  # noqa: BLE001 - an error here must not affect the script's end
            pass
        previous(kind, value, trace)

    sys.excepthook = excepthook


def _is_uncaught(frame) -> bool:  # type: ignore[no-untyped-def]
    """Return whether the exception is uncaught.

    An exception is uncaught if the interpreter itself has called our hook, or has called a hook of the script that then
    called our hook. At an interactive prompt, no exception counts as uncaught.

    Args:
        frame: The frame of our hook.
    """
    if hasattr(sys, "ps1"):
        return False  # an interactive prompt continues after an exception
    if frame.f_back is None:
        return True
    while frame.f_back is not None:
        frame = frame.f_back
    hook = sys.excepthook
    code = getattr(hook, "__code__", None) or getattr(type(hook).__call__, "__code__", None)
    return frame.f_code is code


def _send(target: str, line: bytes) -> None:
    import stat

    number, _, inode = target.partition(":")
    if not number:
        return  # this is the importer itself
    fd = int(number)
    status = os.fstat(fd)
    if status.st_ino != int(inode) or not stat.S_ISFIFO(status.st_mode):
        return  # the script has closed the pipe, and another file now has this number
    _write(fd, line)


def _line(kind, value, trace) -> bytes:  # type: ignore[no-untyped-def]
    """Return the event line, which has at most :data:`_LINE_LIMIT` bytes.

    The beginning of a long traceback is omitted.
    """
    import json
    import traceback

    name = kind.__qualname__
    if kind.__module__ not in ("builtins", "__main__"):
        name = f"{kind.__module__}.{name}"
    try:
        message = str(value)
    except Exception:  # noqa: BLE001 - the script's __str__ may raise anything
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
        room = room * 3 // 4  # escapes make the line longer than the text, to an extent that depends on the text


def _write(fd: int, line: bytes) -> None:
    """Write the line. Drop its rest if the toolkit does not read for 2 seconds.

    The kernel does not mix lines of up to PIPE_BUF bytes with the lines of other writers.
    """
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
    """Make Python print the stack of every thread when a signal arrives. The toolkit sends this signal to the ranks of
    a job that hangs.
    """
    import faulthandler

    try:  # noqa: SIM105 - contextlib is not imported this early
        faulthandler.register(number, file=2, all_threads=True, chain=False)
    except (ValueError, RuntimeError, OSError):
        pass  # this system has no such signal, or standard error is closed


class _Imports:
    """Report at intervals that modules are being imported. On a busy machine, imports may take long without printing
    output.

    The object is the first finder in ``sys.meta_path``, but never finds a module. Each name counts only once, because
    repeated attempts are not progress.
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
        except Exception:  # noqa: BLE001 - an error here must not affect the import
            pass


def _json(value) -> str:  # type: ignore[no-untyped-def]
    """Return a value as JSON. The module ``json`` is not imported, because the script's folder may contain a module of
    that name.
    """
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


def _ours(module, name):  # type: ignore[no-untyped-def]
    """Import a module of this folder, and return its function ``name``. Return None after an error.

    The module must be imported before this folder is removed from the path.
    """
    try:
        return getattr(__import__(module), name)
    except Exception:  # noqa: BLE001 - then the process is not observed
        return None


class _OnImport:
    """Call a function with a module when the module has been imported.

    Until then, the object is in ``sys.meta_path``.

    Args:
        name: The name of the module.
        then: The function.
    """

    def __init__(self, name, then) -> None:  # type: ignore[no-untyped-def]
        self._name = name
        self._then = then

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        from importlib.machinery import PathFinder

        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module):  # type: ignore[no-untyped-def]
                load(module)
                self._then(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _when_imported(name, then) -> None:  # type: ignore[no-untyped-def]
    """Call a function with a module now, or when the module has been imported."""
    if sys.modules.get(name) is not None:
        then(sys.modules[name])
    else:
        sys.meta_path.insert(0, _OnImport(name, then))


def _check_arguments(wrap, target: str) -> None:  # type: ignore[no-untyped-def]
    """Wrap argparse's parser now, or when argparse is imported. The wrapped parser reports arguments that it
    misinterprets.


    Args:
        wrap: A function that wraps the parser of the module ``argparse``.
        target: The pipe for events, as ``fd:inode``.
    """

    def tell(text: str) -> None:
        _send(target, _json({"kind": "warning", "data": {"message": text}}).encode() + b"\n")

    def then(module) -> None:  # type: ignore[no-untyped-def]
        try:  # noqa: SIM105 - contextlib is not imported this early
            wrap(module, tell)
        except Exception:  # noqa: BLE001 - the module may be the script's own
            pass

    _when_imported("argparse", then)


def _watch_evidence(watch, target: str):  # type: ignore[no-untyped-def]
    """Start to report to the toolkit whether this process joins the other processes of the job.

    Returns:
        The facts about the process. None after an error.
    """

    def tell(data):  # type: ignore[no-untyped-def]
        try:  # noqa: SIM105 - contextlib is not imported this early
            _send(target, _json({"kind": "evidence", "data": data}).encode() + b"\n")
        except Exception:  # noqa: BLE001 - an error here (the toolkit may have ended) must not affect the script
            pass

    try:
        return watch(tell)
    except Exception:  # noqa: BLE001 - then the process is not observed
        return None


class _Place:
    """Make an elastic worker wait for its rank at the script's first call of ``hvd.init()``.

    By then, the script has imported its modules, so that the other workers can train until this worker is ready to
    join.

    Args:
        fd: The descriptor from which to read the rest of the environment (rank and rendezvous address), as a line of
            JSON.
        target: The pipe for events, as ``fd:inode``.
    """

    def __init__(self, fd: int, target: str) -> None:
        self._fd = fd
        self._target = target
        self._sockets = set()  # type: ignore[var-annotated]

    def wrap(self, module) -> None:  # type: ignore[no-untyped-def]
        """Wrap Horovod's functions for the start, the end and the local rank.

        The start waits for this worker's rank. The end shuts down Horovod's sockets. The local rank and size are those
        of the real host, because each worker is a separate host to Horovod.

        Args:
            module: The module ``horovod.common.basics``.
        """
        basics = module.HorovodBasics
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
        # To Horovod, each worker is a separate host; scripts choose devices by the rank on the real host.
        for name, variable in (("local_rank", "FLEETFIT_LOCAL_RANK"), ("local_size", "FLEETFIT_LOCAL_SIZE")):
            setattr(basics, name, _from_environment(getattr(basics, name), variable))

    def is_at(self, fd: int) -> None:
        """Set the descriptor from which to read the rest of the environment."""
        self._fd = fd

    def wait(self) -> None:
        """Report that this worker is ready, and wait for its rank. Exit if the worker gets no rank.

        Later calls do nothing.
        """
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


def _watch_servers(target: str) -> None:
    """Make ``tf.distribute.Server.join()``, which never returns, report when the script itself calls it.

    Such a script is a server. The toolkit stops the script when the scripts that train have ended.

    Args:
        target: The pipe for events, as ``fd:inode``.
    """

    def wrap(module) -> None:  # type: ignore[no-untyped-def]
        import functools

        join = module.Server.join

        @functools.wraps(join)
        def join_and_say_so(*args, **kwargs):  # type: ignore[no-untyped-def]
            import contextlib
            import threading

            if threading.current_thread() is threading.main_thread():
                # An error here must not affect the script.
                with contextlib.suppress(Exception):
                    _send(target, b'{"kind":"serving","data":{"pid":%d}}\n' % os.getpid())
            return join(*args, **kwargs)

        module.Server.join = join_and_say_so

    _when_imported("tensorflow.python.training.server_lib", wrap)


#: SageMaker's modules for which there are replacements -> the submodules of the replacement.
_STAND_INS = {
    "sagemaker_tensorflow": (),
    "sagemaker_containers": ("sagemaker_containers.beta", "sagemaker_containers.beta.framework"),
    "sagemaker_training": ("sagemaker_training.environment",),
}


class _StandIns:
    """Provide replacements (``container/standins``) for those of SageMaker's modules that a script imports and that are
    not installed.

    The object is the last finder in ``sys.meta_path``. Therefore modules that are installed, or are beside the script,
    are found first.

    Args:
        folder: The folder of the replacements.
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


def _tell_spawned(folder: str) -> None:
    """Make the replacements of SageMaker's modules available in processes that multiprocessing spawns. Such a process
    imports the script without this hook.

    The folder of the replacements is appended to ``sys.path`` of such a process.

    Args:
        folder: The folder of the replacements.
    """

    def wrap(spawn) -> None:  # type: ignore[no-untyped-def]
        import functools

        prepare = spawn.get_preparation_data

        @functools.wraps(prepare)
        def get_preparation_data(*args, **kwargs):  # type: ignore[no-untyped-def]
            data = prepare(*args, **kwargs)
            if isinstance(data.get("sys_path"), list):
                data["sys_path"].append(folder)  # a copy
            return data

        spawn.get_preparation_data = get_preparation_data

    _when_imported("multiprocessing.spawn", wrap)


def _sockets():  # type: ignore[no-untyped-def]
    """Return the descriptor and the inode of each socket of this process."""
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
    """Shut down sockets, so that the processes at their other ends notice that this rank has disconnected.

    If Horovod shuts down after a rank has died, Horovod keeps its connections to the other ranks until the next
    rendezvous. Without this function, a rank that waits for data from this rank would start its rendezvous only after
    the timeout.

    Args:
        sockets: Pairs of a descriptor and an inode, as :func:`_sockets` returns them. Only sockets that are still open
            are shut down.
    """
    import socket

    for fd, _ in sockets & _sockets():
        try:
            with socket.socket(fileno=os.dup(fd)) as end:
                end.shutdown(socket.SHUT_RDWR)
        except OSError:  # a listening socket, or one whose other end has ended
            pass


def _from_environment(method, variable):  # type: ignore[no-untyped-def]
    import functools

    @functools.wraps(method)
    def known(self):  # type: ignore[no-untyped-def]
        value = method(self)  # raises an error if Horovod has not been initialized
        told = os.environ.get(variable, "")
        return int(told) if told.isdecimal() else value

    return known


def _hand_over() -> None:
    """Import the ``sitecustomize`` that would have been imported without this module.

    Raises:
        ImportError: there is no other ``sitecustomize``. For ``site``, this is the normal case. The import system then
            removes this module from ``sys.modules``. Errors of the other module are also raised.
    """
    del sys.modules["sitecustomize"]
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401


def _go_on(late, evidence) -> None:  # type: ignore[no-untyped-def]
    """Finish this module's work in a process that an importer has forked. This part of the work depends on the rank's
    environment.

    Args:
        late: The object that the reporters got in place of the ``fd:inode`` of the pipe for events.
        evidence: The observer that reports whether this process joins others. None if this process is not observed.
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


if __name__ == "sitecustomize":
    _target = os.environ.get(_VARIABLE)
    if _IMPORTER in os.environ:
        _target = _LateTarget()  # type: ignore[assignment]
    _watch = _ours("_fleetfit_evidence", "watch") if os.environ.get(_EVIDENCE) else None
    _evidence = None
    _arguments = _ours("_fleetfit_arguments", "wrap") if _target else None
    sys.modules.pop("_fleetfit_arguments", None)
    _standins = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "standins", "names")
    _leave_the_path()
    try:
        _hand_over()
    finally:
        sys.meta_path.append(_StandIns(_standins))
        _tell_spawned(_standins)
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
            # container.distributed reads it from sys: this module is no longer in sys.modules.
            sys._fleetfit_place = _Place(int(_fd), _target)  # type: ignore[attr-defined]
            _when_imported("horovod.common.basics", sys._fleetfit_place.wrap)  # type: ignore[attr-defined]
        if _target and _arguments is not None:
            _check_arguments(_arguments, _target)
        if _target and _watch is not None:
            # Must be the last step, because it calls the finders behind this finder.
            _evidence = _watch_evidence(_watch, _target)
        if _IMPORTER in os.environ:  # the importer calls this in a fork that will run a script
            sys._fleetfit_go_on = lambda: _go_on(_target, _evidence)  # type: ignore[attr-defined]
