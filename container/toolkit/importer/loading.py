"""What an importer imports, and what a process that is forked from it is given of that."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from container.system import forking
from container.system.variables_read import Noted, is_read_at_load

#: Files that modules are known to read while they are imported.
_FILES = ("~/.keras/keras.json", "~/.config/matplotlib/matplotlibrc")
_MOST_PRINTED = 1 << 18  # bytes
_HOOK = str(Path(__file__).resolve().parents[2] / "hook")
_NO_COLLECTION = 1 << 30

_Effect = tuple[str, bytes, dict[str, bytes | None]]


def top_of(statement: str) -> str:
    """Return the package that an import statement begins with."""
    return statement.split()[1].partition(".")[0]


class Unfit(Exception):
    """No rank can be forked from this process; the message says why."""


class _Finder:
    """Notes the modules and packages that are asked for, and tells now and then that imports go on."""

    def __init__(self, tell: Callable[[dict[str, Any]], None]) -> None:
        self._tell = tell
        self._next = 0.0
        self.names: set[str] = set()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> None:
        if name not in self.names and time.monotonic() >= self._next:  # what is tried again and again is no progress
            self._next = time.monotonic() + 1.0
            self._tell({"importing": name})
        self.names.add(name)


def load(plan: Mapping[str, Any], tell: Callable[[dict[str, Any]], None], own: Callable[[], set[int]]) -> Given:
    """Import what a plan says; what that prints is kept in standard error, a file in memory.

    Args:
        plan: The toolkit's request.
        tell: Tells the toolkits something.
        own: Returns the descriptors that are this program's.

    Raises:
        Unfit: a rank that is forked from here would notice.
    """
    kept = os.memfd_create("printed")
    for stream in (1, 2):
        os.dup2(kept, stream)
    os.close(kept)
    opened = forking.descriptors()
    os.environ.clear()
    os.environ.update(_with_settings(plan["environment"], plan["settings"]))
    finder = _Finder(tell)
    sys.meta_path.insert(0, finder)
    thresholds = gc.get_threshold()
    gc.set_threshold(_NO_COLLECTION)  # what modules make at their import stays: collecting takes a fifth of the time
    values = os.environ._data  # type: ignore[attr-defined]
    noted = os.environ._data = Noted(values)  # type: ignore[attr-defined]
    try:
        effects: list[_Effect] = []
        for statement in plan["statements"]:
            if importlib.util.find_spec(top_of(statement)) is not None:  # or each rank is told
                before, printed = set(noted.items()), os.fstat(2).st_size
                exec(compile(statement, "<importer>", "exec"), {"__name__": "fleetfit"})
                sys.stdout.flush()
                after = dict(noted.items())
                changed = {os.fsdecode(name): after.get(name) for name, _ in before ^ set(after.items())}
                effects.append((top_of(statement), os.pread(2, _MOST_PRINTED, printed), changed))
    except Exception as error:
        raise Unfit(f"{type(error).__name__}: {error}") from error
    finally:
        if gc.get_threshold()[0] == _NO_COLLECTION:
            gc.set_threshold(*thresholds)
        sys.meta_path.remove(finder)
        values.clear()
        values.update(list(noted.items()))  # which looks at none by its name
        os.environ._data = values  # type: ignore[attr-defined]
    seen = None if noted.whole else {os.fsdecode(name) for name in noted.seen if isinstance(name, bytes)}
    given = Given(plan, seen, finder.names, effects)
    if stale := given.staleness(plan["names"]):
        raise Unfit(stale)
    if why := forking.obstacle(opened, own()):
        raise Unfit(why)
    if os.fstat(2).st_size > _MOST_PRINTED:
        raise Unfit("the imports print too much")
    return given


def identity(path: str) -> tuple[int, ...] | None:
    """Return what tells a file from a changed one; None without one."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def python_path(environment: Mapping[str, str]) -> list[str]:
    """Return the folders of an environment's ``PYTHONPATH``, but the hook's."""
    folders = dict.fromkeys(map(os.path.abspath, environment["PYTHONPATH"].split(os.pathsep)))
    return [folder for folder in folders if folder != _HOOK]


def _with_settings(environment: Mapping[str, str], settings: Iterable[tuple[str, str, bool]]) -> dict[str, str]:
    """Return an environment as a script's settings make it."""
    return {
        **environment,
        **{name: environment.get(name, value) if default else value for name, value, default in settings},
    }


def _elsewhere(name: str, file: str) -> str | None:
    """Return from where an import would take a module, if not from its file."""
    found = PathFinder.find_spec(name)
    return found.origin if found is not None and found.origin != file else None


class Given:
    """What was imported, as a fork is given it: by the script's own imports, if these would have found the same.

    Stands in ``sys.meta_path`` of a rank until the script has imported all of it.

    Args:
        plan: The toolkit's request.
        seen: The variables that were looked at; None for all.
        names: The modules that were asked for.
        effects: What each statement has printed and set: the package, the text, and variables with their values.
    """

    def __init__(
        self, plan: Mapping[str, Any], seen: set[str] | None, names: set[str], effects: Sequence[_Effect] = ()
    ) -> None:
        self._settings, self._seen, self._effects = plan["settings"], seen, effects
        self._path = [folder for folder in python_path(plan["environment"]) if folder != plan["cwd"]]
        self._noted = self._digest(_with_settings(plan["environment"], self._settings))
        files = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
        self._tops = {name.partition(".")[0] for name in (*names, *files)} - {"container"}
        wanted = set(map(top_of, plan["statements"]))
        # Of these, ``container`` is the toolkit's own, and scripts may have another.
        self._packages = {top: file for top in wanted if (file := files.get(top)) and not _elsewhere(top, file)}
        self._files = {
            path: identity(path) for path in (*files.values(), *map(os.path.expanduser, _FILES), *sys.path) if path
        }
        self._hidden: dict[str, dict[str, ModuleType]] = {}

    def _digest(self, environment: Mapping[str, str]) -> dict[str, int]:
        """Return what is remembered of the variables that may have been read: no words, which may be secrets."""
        found = {}
        for name, value in environment.items():
            if name != "PYTHONPATH" and (self._seen is None or name in self._seen or is_read_at_load(name)):
                lists = name in ("LD_LIBRARY_PATH", "PATH")  # mpirun puts the same folder in front several times
                found[name] = hash(tuple(dict.fromkeys(value.split(":"))) if lists else value)
        return found

    def _difference(self, environment: Mapping[str, str]) -> str | None:
        """Return a variable by which imports in an environment might come out differently."""
        theirs = self._digest(environment)
        return next(
            (name for name in sorted({*self._noted, *theirs}) if self._noted.get(name) != theirs.get(name)), None
        )

    def refusal(self, environment: Mapping[str, str], code: str) -> str | None:
        """Return why no process with an environment and a folder of code is to be forked; None if one can be."""
        if [folder for folder in python_path(environment) if folder != code] != self._path:
            return "PYTHONPATH differs"
        name = self._difference(_with_settings(environment, self._settings))
        return f"{name} differs" if name else None

    def staleness(self, names: Iterable[str]) -> str | None:
        """Return why a project whose modules have these names is not to have what was imported; None if it can."""
        if clash := min(self._tops.intersection(names), default=None):
            return f"the script's folder has a module {clash}"
        changed = next((path for path, was in self._files.items() if identity(path) != was), None)
        return f"{changed} was changed" if changed else None

    def hide(self) -> None:
        """Leave it to the script to import the packages, in a rank that is about to run it."""
        for name in list(sys.modules):
            top = name.partition(".")[0]
            if top in self._packages:
                self._hidden.setdefault(top, {})[name] = sys.modules.pop(name)
            elif top == "container":
                del sys.modules[name]
        if self._hidden:
            sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        if path is not None or name not in self._hidden:
            return None
        return ModuleSpec(name, self, origin=self._packages[name], is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name, file = module.__name__, self._packages[module.__name__]
        why = ""
        if variable := self._difference(os.environ):
            why = f"the script has set {variable} before it imports {name}"
        elif found := _elsewhere(name, file):
            why = f"the script would import {name} from {found}, which is not {file}"
        if why:
            raise RuntimeError(
                f"{why}, but fleetfit had already imported {name} for this process. Set variables at the top of the "
                'script, as os.environ["NAME"] = "value", or in environment= of the estimator. Alternatively, set '
                'environment={"FLEETFIT_FORK": "0"}, so that each process imports its modules itself.'
            )
        sys.modules.update(self._hidden.pop(name))
        if not self._hidden:
            sys.meta_path.remove(self)
        for _, printed, changed in [effect for effect in self._effects if effect[0] == name]:
            sys.stdout.flush()
            while printed:
                printed = printed[os.write(1, printed) :]
            for variable, value in changed.items():
                if value is None:
                    os.environ.pop(variable, None)
                else:
                    os.environ[variable] = os.fsdecode(value)
        self._noted = self._digest(os.environ)
