"""What a fork of a host's importer does to become the process that a rank's own command would have become.

See ``_fleetfit_importer.py``. Nothing of ours can be imported here, but what lies beside it.
"""

import contextlib
import os
import resource
import sys

import _fleetfit_command  # type: ignore[import-not-found]
from _fleetfit_hosts import python_path  # type: ignore[import-not-found]
from _fleetfit_imports import PRINTED_LIMIT  # type: ignore[import-not-found]


def become(request, passed, host, *, server):  # type: ignore[no-untyped-def]
    """Take over all that the wrapper would have given its command; a server is run to its end."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    printed = os.pread(2, PRINTED_LIMIT, 0)
    output, events, *others = passed
    os.dup2(output, 1, inheritable=True)
    os.dup2(output, 2, inheritable=True)
    os.close(output)
    environment = dict(request["environment"])
    os.set_inheritable(events, True)
    target = f"{events}:{os.fstat(events).st_ino}"
    environment["FLEETFIT_EVENTS"] = target  # container.contract.variables.EVENTS
    if others:
        os.set_inheritable(others[0], True)
        environment["FLEETFIT_PLACE_FD"] = str(others[0])  # container.contract.variables.PLACE_FD
    if not server and host.configuration is not None:
        host.configuration.take(request["argv"])
    _fleetfit_command.show(request["argv"], environment)
    for name, value in host.surroundings.changed.items():
        environment[name] = value
    for name in list(os.environ):
        if environment.get(name) is None:
            del os.environ[name]
    os.environ.update({name: value for name, value in environment.items() if value is not None})
    os.umask(request["umask"])
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(request["oom_score_adj"])
    for number, soft, most in request["limits"]:
        if resource.getrlimit(number) != (soft, most):
            resource.setrlimit(number, (soft, most))
    _reseed()
    sys.path[:] = [host.code if folder == host.surroundings.code else folder for folder in sys.path]
    sys.path_importer_cache.clear()
    while printed:
        printed = printed[os.write(1, printed) :]
    if server:
        _run_program(request["argv"])
    return target


def _reseed():  # type: ignore[no-untyped-def]
    """Give this process random numbers of its own; Python's own ``random`` sees to itself."""
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.seed()
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes.current_process().authkey = os.urandom(32)


def _run_program(argv):  # type: ignore[no-untyped-def]
    """Run a program of ours, ``python -I …/__main__.py serve``, in this process, to its end."""
    import atexit
    import runpy
    import threading

    folders = python_path(os.environ)
    sys.path[:] = [folder for folder in sys.path if folder not in folders]
    sys.argv = argv[2:]
    sys.excepthook = sys.__excepthook__
    code = 0
    try:
        runpy.run_path(argv[2], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter would
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
