"""Run the user's function in each process of a job. This program is the entry point of a job that runs a function.

The module :mod:`estimators.client.functions.packing` copies this file to the top of the job's code. Beside the copy, it
creates a folder with the packed function and the files of cloudpickle. Therefore the program needs no installed
packages, and runs in any image.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import linecache
import os
import site
import sys
import time
import traceback
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: The name of the folder beside the program, which :mod:`container.contract.layout` also defines, and the names of its
#: contents.
FOLDER = "fleetfit_function"
DESCRIPTION, FUNCTION, SOURCES = "function.json", "function.pkl", "sources"
#: The name of a file that shows the function's imports. :mod:`container.contract.layout` also defines this name.
IMPORTS = "imports.py"

#: The folder in ``output.tar.gz`` that contains the return value and the exceptions, and the names of these files.
RETURNED = "fleetfit_function"
VALUE, ERROR = "value.pkl", "error-{host}-{rank}.pkl"

#: The end of the type of a parameter that may be None, as in ``int | None``.
OR_NONE = " | None"

#: Texts that are accepted for a parameter of type bool. Tuning jobs and SageMaker's console write booleans as texts.
_TRUTH = {"true": True, "false": False, "1": True, "0": False}


def convert(kind: str, value: Any) -> Any:
    """Convert a hyperparameter to the type of a parameter's annotation.

    Args:
        kind: The annotation's name: ``int``, ``float``, ``bool`` or ``str``, or such a name with :data:`OR_NONE`. Any
            other name leaves the value unchanged.
        value: The value.

    Raises:
        ValueError: the value cannot be converted to the type.
    """
    if value is None and kind.endswith(OR_NONE):
        return None
    kind = kind.removesuffix(OR_NONE)
    if kind == "bool":
        if isinstance(value, bool):
            return value
        if str(value).lower() not in _TRUTH:
            raise ValueError(f"{value!r} is neither True nor False")
        return _TRUTH[str(value).lower()]
    if kind == "int":
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
            raise ValueError(f"{value!r} is not a whole number")
        return int(value)
    if kind == "float":
        if isinstance(value, bool):
            raise ValueError(f"{value!r} is not a number")
        return float(value)
    if kind == "str" and isinstance(value, list | Mapping):
        raise ValueError(f"{value!r} is not a text")
    if kind == "str" and not isinstance(value, str):
        return value if value is None else str(value)
    return value


def arguments(description: Mapping[str, Any], hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments with which to call the function: hyperparameters and channels.

    Args:
        description: The description that was packed with the function.
        hyperparameters: The job's hyperparameters by name.

    Raises:
        ValueError: a value is not of the parameter's type.
        TypeError: a required parameter has no value.
    """
    found: dict[str, Any] = {}
    missing = []
    for parameter in description["parameters"]:
        name = parameter["name"]
        if parameter["channel"]:
            channel = _channel(name)
            if channel is not None:
                found[name] = channel
            elif parameter["required"]:
                missing.append(f"channel {name!r}")
        elif name in hyperparameters:
            try:
                found[name] = convert(parameter["type"], hyperparameters[name])
            except (TypeError, ValueError) as error:
                raise ValueError(f"hyperparameter {name!r} must be of type {parameter['type']}: {error}") from None
        elif parameter["required"]:
            missing.append(f"hyperparameter {name!r}")
    if missing:
        name = description["name"]
        raise TypeError(f"{name}() cannot be called: the job has no {', no '.join(missing)}, which {name}() requires.")
    if description["takes_others"]:
        others = {name: value for name, value in hyperparameters.items() if not name.startswith("sagemaker_")}
        others.pop("model_dir", None)
        found = {**others, **found}
    return found


def rank() -> int | None:
    """Return this process's rank, or None if this process has no rank because it is a parameter server, for example."""
    for name in ("horovod.tensorflow", "horovod.torch"):  # in an elastic job the rank changes; only Horovod knows it
        horovod = sys.modules.get(name)
        if horovod is not None and horovod.is_initialized():
            return int(horovod.rank())
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "HOROVOD_RANK"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    if "task" in config:
        kind, index = config["task"].get("type"), int(config["task"].get("index", 0))
        if kind in ("chief", "master"):
            return 0
        led = any(name in config.get("cluster", {}) for name in ("chief", "master"))
        return index + led if kind == "worker" else None
    if os.environ.get("RANK", "").isdigit():
        return int(os.environ["RANK"])
    hosts = json.loads(os.environ.get("SM_HOSTS") or "[]")
    current = os.environ.get("SM_CURRENT_HOST")
    return hosts.index(current) if current in hosts else 0


def main() -> None:
    """Call the function with this job's hyperparameters and channels, and store the return value or the exception."""
    folder = Path(__file__).resolve().parent / FOLDER
    description = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if description["python"] != here:
        sys.exit(
            f"{description['name']}() was packed by Python {description['python']}, but this host has Python {here}: a "
            f"packed function needs the Python version that packed it. Use Python {description['python']} on the "
            "hosts, or give a script as the entry point."
        )
    _show_sources(folder / SOURCES, description["files"])
    cloudpickle = _cloudpickle(folder)
    try:
        function = cloudpickle.loads((folder / FUNCTION).read_bytes())
        _become_main(names_of(function))
        value = function(**arguments(description, json.loads(os.environ.get("SM_HPS") or "{}")))
    except Exception as error:
        own = error.__traceback__  # the frame of this program, before the frames of the function
        text = "".join(traceback.format_exception(type(error), error, (own and own.tb_next) or own))
        number = rank()
        name = ERROR.format(host=os.environ.get("SM_CURRENT_HOST", "host"), rank="server" if number is None else number)
        _keep(
            name,
            {"error": _portable_error(error, cloudpickle), "text": text, "rank": number, "time": time.time()},
            cloudpickle,
        )
        raise
    if rank() == 0:
        _keep(VALUE, {"value": _portable(value)}, cloudpickle)


def _cloudpickle(folder: Path) -> Any:
    """Return the module ``cloudpickle`` with the code that was packed with the function.

    If another version is already imported, replace the code in that version's modules, because libraries such as
    Horovod keep references to these modules.
    """
    for name in sorted((name for name in sys.modules if name.partition(".")[0] == "cloudpickle"), reverse=True):
        module, file = sys.modules[name], folder / "cloudpickle" / f"{name.partition('.')[2] or '__init__'}.py"
        if file.is_file() and Path(module.__file__ or "").read_bytes() != file.read_bytes():
            exec(compile(file.read_bytes(), str(file), "exec"), vars(module))
    if "cloudpickle" not in sys.modules:
        spec: Any = importlib.util.spec_from_file_location("cloudpickle", folder / "cloudpickle" / "__init__.py")
        sys.modules["cloudpickle"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["cloudpickle"])
    return sys.modules["cloudpickle"]


def names_of(function: Any) -> dict[str, Any]:
    """Return the functions and classes of the user's ``__main__`` module that were packed with a function.

    The result is a mapping from names to functions and classes.
    """
    found: dict[str, Any] = {}
    seen: set[int] = set()
    waiting: list[Any] = [function]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        for each in (value, type(value)):
            name = getattr(each, "__qualname__", None)
            if isinstance(name, str) and getattr(each, "__module__", None) == "__main__" and name.isidentifier():
                found[name] = each
        if isinstance(value, functools.partial):
            waiting += [value.func, *value.args, *value.keywords.values()]
        elif callable(value) and hasattr(value, "__globals__"):
            if value.__module__ == "__main__":
                waiting += value.__globals__.values()
            waiting += [getattr(value, "__wrapped__", None), *(value.__defaults__ or ())]
            waiting += (value.__kwdefaults__ or {}).values()
            waiting += [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
    return found


def _is_filled(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _become_main(names: Mapping[str, Any]) -> None:
    """Replace the module ``__main__`` by a new module with the functions and classes of the user's script or notebook.

    pickle searches for these classes in ``__main__``. A new module is used, so that the user's names cannot replace
    names of this program.
    """
    global _program
    _program = sys.modules["__main__"]
    main = types.ModuleType("__main__")
    main.__file__, main.__spec__ = __file__, None  # processes that multiprocessing spawns run this file
    vars(main).update(names)
    sys.modules["__main__"] = main


#: A reference to this program's module. It keeps the module alive after `__main__` has been replaced.
_program: types.ModuleType | None = None


def _channel(name: str) -> Any:
    place = os.environ.get(f"SM_CHANNEL_{name.upper()}")
    if place is None:
        return None
    try:
        from container.contract.channels import Channel
    except ImportError:  # the image contains a different toolkit than fleetfit's
        return place
    return Channel(place, name=name)


def _show_sources(folder: Path, files: Mapping[str, str]) -> None:
    """Register source texts, so that tracebacks show the code of notebook cells and of files that this host lacks."""
    site.addsitedir(str(folder))  # appended to sys.path, where the interpreter also searches for source files
    for place, name in files.items():
        if not os.path.exists(place):
            text = (folder / name).read_text(encoding="utf-8")
            linecache.cache[place] = (len(text), None, text.splitlines(keepends=True), place)


def _portable(value: Any) -> Any:
    """Replace a path in the job's model or output folder by a marker. Return any other value unchanged.

    On the user's machine, the marker is replaced by the path of a local copy.
    """
    if isinstance(value, Path):
        for kind, variable in (("model", "SM_MODEL_DIR"), ("output", "SM_OUTPUT_DATA_DIR")):
            folder = os.environ.get(variable)
            if folder and value.resolve().is_relative_to(Path(folder).resolve()):
                return _Below(kind, value.resolve().relative_to(Path(folder).resolve()).as_posix())
    return value


def _portable_error(error: Exception, cloudpickle: Any) -> Any:
    """Return an exception that the user's process can unpickle: the exception itself, or a replacement.

    Some exceptions cannot be unpickled, because the parameters of their ``__init__`` differ from their ``args``. Some
    have attributes that cannot be pickled.
    """
    try:
        if isinstance(cloudpickle.loads(cloudpickle.dumps(error)), Exception):
            return error
    except Exception:  # noqa: BLE001 - the class can raise any exception
        pass
    try:
        remade = _Remade(error, cloudpickle)
        cloudpickle.loads(cloudpickle.dumps(remade))
        return remade
    except Exception:  # noqa: BLE001 - the class, or a group of exceptions, cannot be created from its arguments
        return RuntimeError(f"{type(error).__name__}: {error}")


class _Remade:
    """A replacement for an exception that cannot be unpickled.

    Unpickling the replacement creates an exception of the same class without calling ``__init__``.
    """

    def __init__(self, error: Exception, cloudpickle: Any) -> None:
        def can_be_packed(value: Any) -> bool:
            try:
                cloudpickle.dumps(value)
                return True
            except Exception:  # noqa: BLE001 - the class can raise any exception
                return False

        # Use the __reduce__ of the built-in base class, because the __reduce__ of the user's class may raise an
        # exception or return other values.
        args = tuple(
            value if can_be_packed(value) else repr(value) for value in _builtin(type(error)).__reduce__(error)[1]
        )
        attributes = {name: value for name, value in vars(error).items() if can_be_packed(value)}
        self.made_of = (type(error), args, attributes)

    def __reduce__(self) -> tuple[Any, ...]:
        return _remake, self.made_of


def _builtin(kind: type[Exception]) -> Any:
    return next(base for base in kind.__mro__ if base.__module__ == "builtins")


def _remake(kind: type[Exception], args: tuple[Any, ...], attributes: Mapping[str, Any]) -> Exception:
    """Create an exception from its class, arguments and attributes, without calling the class's ``__init__``.

    cloudpickle packs this function with its code, because the user's process cannot import this program.
    """
    error = kind.__new__(kind, *args)
    _builtin(kind).__init__(error, *args)  # sets errno and similar attributes of built-in exceptions
    vars(error).update(attributes)
    return error


class _Below:
    """A marker that replaces a path in the job's outputs.

    It is pickled as the tuple ``("fleetfit:path", kind, path)``.
    """

    def __init__(self, kind: str, path: str) -> None:
        self.marked = ("fleetfit:path", kind, path)

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (self.marked,)


def _keep(name: str, said: dict[str, Any], cloudpickle: Any) -> None:
    """Write the function's return value or exception to a file in the job's outputs.

    If the value or exception cannot be pickled, the reason is written and printed instead.
    """
    folder = Path(os.environ.get("SM_OUTPUT_DATA_DIR") or ".") / RETURNED
    try:
        packed = cloudpickle.dumps(said)
    except Exception as error:  # noqa: BLE001 - the returned object can raise any exception
        of = said.pop("value", said.pop("error", None))
        problem = f"{type(of).__name__} cannot be packed: {type(error).__name__}: {error}"
        packed = cloudpickle.dumps({**said, "problem": problem})
        print(f"fleetfit: the function's return value is lost: {problem}", file=sys.stderr)
    folder.mkdir(parents=True, exist_ok=True)
    whole = folder / f".{name}.{os.getpid()}"
    whole.write_bytes(packed)
    whole.replace(folder / name)


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":  # a process that multiprocessing has spawned finds the user's objects here
    _folder = Path(__file__).resolve().parent / FOLDER
    globals().update(names_of(_cloudpickle(_folder).loads((_folder / FUNCTION).read_bytes())))
