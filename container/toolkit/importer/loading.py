"""Execute the imports of an importer, and give the imported modules to the ranks that are forked from it.

An importer is a process that imports packages once for many ranks (:mod:`container.toolkit.importer.server`).
"""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from container.system import files
from container.system.importing import Importing, top_of
from container.system.variables_read import NotingEnviron, is_read_at_load

#: A toolkit's request (:class:`container.toolkit.importer.importer.Importer`).
Request = Mapping[str, Any]

#: Files that some modules read while they are imported.
_FILES = ("~/.keras/keras.json", "~/.config/matplotlib/matplotlibrc")

#: Effect of an import statement: the package, the printed text, and the changed variables with their values.
_Effect = tuple[str, bytes, dict[bytes, bytes | None]]


def load(plan: Request, tell: Callable[[str], object]) -> Given:
    """Execute the imports that a toolkit has requested.

    Args:
        plan: The toolkit's request.
        tell: A function that is called at most once a second with the name of a module that is being imported.
    """
    os.environ.clear()
    os.environ.update(_with_settings(plan["environment"], plan["settings"]))
    # Without packages that are not installed; each rank reports these itself.
    statements = [one for one in plan["statements"] if importlib.util.find_spec(top_of(one)) is not None]
    gc.disable()  # objects that modules create at their import are kept: collecting garbage takes a fifth of the time
    unwatched, os.environ.__class__ = os.environ.__class__, NotingEnviron
    with Importing(tell) as importing:
        effects = [_run(statement) for statement in statements]
    os.environ.__class__ = unwatched
    gc.enable()
    return Given(plan, None if NotingEnviron.whole else NotingEnviron.seen, importing.names, effects)


def _run(statement: str) -> _Effect:
    """Execute an import statement, and return the effect of the statement."""
    before, printed = dict(os.environb), os.fstat(2).st_size
    exec(compile(statement, "<importer>", "exec"), {"__name__": "fleetfit"})
    sys.stdout.flush()
    after = dict(os.environb)
    changed = {name: after.get(name) for name, _ in before.items() ^ after.items()}
    return top_of(statement), os.pread(2, os.fstat(2).st_size, printed), changed


def _identity(path: str) -> tuple[int, ...] | None:
    """Return a value that changes when a file changes. Return None if the file does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _with_settings(environment: Mapping[str, str], settings: Iterable[tuple[str, str, bool]]) -> dict[str, str]:
    """Return a copy of an environment, with the variables that a script sets (``Imports.settings``)."""
    made = {name: environment.get(name, value) if default else value for name, value, default in settings}
    return {**environment, **made}


def _elsewhere(name: str, file: str) -> str | None:
    """Return the file from which an import would load the module ``name``. Return None if this file is ``file``, or if
    the module is not found.
    """
    found = PathFinder.find_spec(name)
    return found.origin if found is not None and found.origin != file else None


class Given(Loader):
    """Give the importer's modules to a forked rank when the rank's script imports them.

    The object is in ``sys.meta_path`` of the rank until the script has imported all of the importer's packages. The
    script's import statement raises a RuntimeError if it would otherwise load a package from a different file. It also
    raises a RuntimeError if the script has changed a variable that may have been read during the importer's imports.

    Args:
        plan: The toolkit's request.
        seen: The variables that were read during the imports. None for all variables.
        names: The names of the modules that the importer's imports searched for.
        effects: The effect of each import statement.
    """

    def __init__(self, plan: Request, seen: set[str] | None, names: Iterable[str], effects: Sequence[_Effect]) -> None:
        self._settings, self._seen, self._effects = plan["settings"], seen, effects
        self._noted = self._digest(_with_settings(plan["environment"], self._settings))
        loaded = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
        self._tops = {name.partition(".")[0] for name in (*names, *loaded)} - {"container"}
        wanted = set(map(top_of, plan["statements"]))
        # Not ``container``, which is the toolkit's own; scripts may have another version.
        self._packages = {top: file for top in wanted if (file := loaded.get(top)) and not _elsewhere(top, file)}
        read = (*loaded.values(), *map(os.path.expanduser, _FILES), *sys.path)
        self._files = {path: _identity(path) for path in read if path}
        self._hidden: dict[str, dict[str, ModuleType]] = {}

    def _digest(self, environment: Mapping[str, str]) -> dict[str, int]:
        """Return a hash of the value of each variable that may have been read during the imports. The values themselves
        are not stored, because a value may be a secret.
        """
        lists = ("LD_LIBRARY_PATH", "PATH")  # mpirun prepends the same folder several times
        return {
            name: hash(tuple(dict.fromkeys(value.split(":"))) if name in lists else value)
            for name, value in environment.items()
            if name != "PYTHONPATH" and (self._seen is None or name in self._seen or is_read_at_load(name))
        }

    def _difference(self, environment: Mapping[str, str]) -> str | None:
        """Return the name of a variable whose value in an environment may change the result of the imports. Return None
        if there is no such variable.
        """
        changed = self._noted.items() ^ self._digest(environment).items()
        return min((name for name, _ in changed), default=None)

    def refusal(self, environment: Mapping[str, str]) -> str | None:
        """Return why a rank with this environment may not be forked from this process. Return None if the rank may be
        forked.
        """
        name = self._difference(_with_settings(environment, self._settings))
        return f"{name} differs" if name else None

    def staleness(self, names: Iterable[str]) -> str | None:
        """Return why the imported modules cannot be used for a project's script. Return None if they can be used.

        Args:
            names: The names of the modules in the project's folders.
        """
        if clash := min(self._tops.intersection(names), default=None):
            return f"the script's folder has a module {clash}"
        changed = next((path for path, was in self._files.items() if _identity(path) != was), None)
        return f"{changed} was changed" if changed else None

    def hide(self) -> None:
        """Remove the importer's packages from ``sys.modules`` of a rank before it runs the script. The script's import
        statements then find this object.
        """
        for name in list(sys.modules):
            top = name.partition(".")[0]
            if top in self._packages:
                self._hidden.setdefault(top, {})[name] = sys.modules.pop(name)
            elif top == "container":
                del sys.modules[name]
        if self._hidden:
            sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        is_hidden = name in self._hidden
        return ModuleSpec(name, self, origin=self._packages[name], is_package=True) if is_hidden else None

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
            files.write_all(1, printed)
            os.environb.update({variable: value for variable, value in changed.items() if value is not None})
            for removed in [variable for variable, value in changed.items() if value is None]:
                os.environb.pop(removed, None)
        self._noted = self._digest(os.environ)
