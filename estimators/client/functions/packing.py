"""Pack a function into files that are copied to the hosts of a job.

cloudpickle packs the function, together with the definitions that it uses from the notebook or script. Modules of the
project, which are in the user's folders or in editable installs, are copied into the job's code as files. Therefore an
``import`` in the function's body also finds these modules. All other modules must be installed on the hosts. The source
text is also packed. Tracebacks on the hosts show lines of this text.
"""

from __future__ import annotations
import __future__

import ast
import contextlib
import dis
import functools
import inspect
import io
import json
import linecache
import os
import pickletools
import re
import sys
import textwrap
import types
import typing
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from container.contract.frozen import dataclass
from container.contract.names import shown, unknown
from estimators.client.functions import modules, runner
from estimators.job.errors import ConfigurationError, UnsupportedError

#: If the values that a function uses are too large, the error names each value of at least this size, in bytes.
_NAMED = 100_000
#: Maximum depth of the search in a nested value for the item that cannot be pickled.
_DEPTH = 4
#: Maximum length of a source text that is sent with the function, in characters.
_LARGEST_SOURCE = 1_000_000

#: The text that cloudpickle puts in the place of the file's name in a code object.
_NO_FILE = "<dynamic-code>"

#: Prefix of the name of a generated program that runs a function.
_PROGRAM = "run_"

#: Matches the Python version in the tag of an image from AWS.
_IMAGE_PYTHON = re.compile(r"\.amazonaws\.com(?:\.cn)?/[^:]+:[^/]*-py(\d)(\d+)\b")

#: A callable of the user: a function, a method of an object, or a ``functools.partial`` of one of these.
Function = Callable[..., Any]

#: The type of functions that ``functools.lru_cache`` or ``functools.cache`` has decorated.
_CachedFunction = type(functools.cache(lambda: None))

#: Prefixes of the names of bytecode instructions that apply operators.
_OPERATORS = ("BINARY_", "COMPARE_", "CONTAINS_", "INPLACE_", "IS_", "UNARY_")

#: The annotations of parameters that fleetfit reads.
_SIMPLE = ("int", "float", "bool", "str", "Channel")


@dataclass(frozen=True, kw_only=True)
class Packed:
    """The files and modules with which a function becomes part of a job's code.

    Attributes:
        program: The name of the program that runs the function.
        files: The program and the files that it needs, as a mapping from paths to contents.
        modules: The project's modules, as a mapping from names at the top of the job's code to files or folders.
    """

    program: str
    files: Mapping[str, bytes]
    modules: Mapping[str, Path]


def name_of(function: Function) -> str:
    """Return the name of a function, without the names of enclosing functions."""
    function = _inner(function)
    return getattr(function, "__qualname__", type(function).__qualname__).rpartition("<locals>.")[2]


def check(function: Any) -> None:
    """Check that a callable can be an entry point.

    Raises:
        ConfigurationError: the callable is decorated with ``@remote``, or is a class, a generator function or a
            coroutine function.
    """
    inner = _inner(function)
    if not callable(inner):
        raise ConfigurationError(f"{shown(inner)} is not a function.")
    if hasattr(inner, "wrapped_func"):
        raise ConfigurationError(
            f"entry_point: {name_of(inner)}() is decorated with @remote, so the job would only start another job. "
            f"Give {name_of(inner)}.wrapped_func."
        )
    if isinstance(inner, type):
        raise ConfigurationError(f"entry_point: {inner.__name__} is a class. Give a function or a method.")
    if inspect.isgeneratorfunction(inner):
        raise ConfigurationError(
            f"entry_point: {name_of(inner)}() is a generator, and calling a generator does not run its code. Return "
            "the values instead of yielding them."
        )
    if inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner):
        raise ConfigurationError(
            f"entry_point: {name_of(inner)}() is async. Give a function that calls it with asyncio.run()."
        )


def check_call(function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Check that a function can be called with the given arguments.

    Raises:
        TypeError: the arguments do not match the parameters. The message contains the text of Python's error.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:  # a builtin without a signature
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{name_of(function)}() cannot be called like this: {error}.") from None


def check_image(function: Function, image: str | None) -> None:
    """Check that an image has this process's Python version.

    A packed function can be unpacked only by the same version.

    Args:
        function: The function.
        image: The image. Only images from AWS are checked, because their tags contain the Python version, as in
            ``…-py310-…``.

    Raises:
        ConfigurationError: the image has a different Python version.
    """
    found = _IMAGE_PYTHON.search(image or "")
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if found is not None and f"{found[1]}.{found[2]}" != here:
        raise ConfigurationError(
            f"entry_point: {name_of(function)}() is packed by Python {here}, and {image} has Python "
            f"{found[1]}.{found[2]}: a packed function needs the Python version that packed it. Use an image with "
            f"Python {here}, call fit() in Python {found[1]}.{found[2]}, or give a script."
        )


def pack(
    function: Function,
    *,
    hyperparameters: Mapping[str, Any],
    channels: Collection[str],
    later: Mapping[str, Sequence[Any]] = types.MappingProxyType({}),
    added: Collection[str] = (),
    limit: int,
) -> Packed:
    """Pack a function into the files and modules that a job needs to run the function.

    Args:
        function: A function, a method of an object, or a ``functools.partial`` of a function or method.
        hyperparameters: The job's hyperparameters. Each hyperparameter must be a parameter of the function.
        channels: The names of the job's channels.
        later: The hyperparameters whose values a tuning job will add, with examples of the values.
        added: The names of hyperparameters that the estimator adds. The function need not have parameters for them.
        limit: The maximum size of the packed function, including the values that it uses, in bytes.

    Raises:
        ConfigurationError: the parameters do not match the hyperparameters and channels, a value that the function uses
            cannot be pickled, or these values are too large. The message names the value.
        UnsupportedError: cloudpickle is not installed.
    """
    check(function)
    try:
        import cloudpickle  # type: ignore[import-untyped]
    except ImportError:
        raise UnsupportedError(
            "entry_point: a function needs cloudpickle, which is not installed. Run `fleetfit install functions`."
        ) from None
    name = name_of(function)
    description = describe(function, hyperparameters=hyperparameters, channels=channels, later=later, added=added)
    codes: list[types.CodeType] = []
    try:
        packed = _dumps(function, codes)
    except Exception as error:  # the __reduce__ method of a value can raise any exception
        raise ConfigurationError(_unpackable(name, function, error)) from error
    if len(packed) > limit:
        raise ConfigurationError(_too_large(name, function, len(packed), limit))
    found = modules.project_modules(packed, codes)
    texts = dict(_sources(function))
    names: dict[str, str] = {}
    for place in texts:
        base = os.path.basename(place)
        names[place] = f"{len(names)}-{base}" if base in names.values() else base
    folder = runner.FOLDER
    files = {
        f"{folder}/{runner.DESCRIPTION}": json.dumps({**description, "files": names}, indent=2).encode(),
        f"{folder}/{runner.FUNCTION}": packed,
        **{f"{folder}/{runner.SOURCES}/{names[place]}": text.encode() for place, text in texts.items()},
        **{f"{folder}/cloudpickle/{path.name}": path.read_bytes() for path in _files_of(cloudpickle)},
    }
    program = f"{_PROGRAM}{re.sub(r'[^A-Za-z0-9_]+', '_', name).strip('_') or 'function'}.py"
    files[program] = Path(runner.__file__).read_bytes()
    files[f"{folder}/{runner.IMPORTS}"] = _imports_of(function, packed, codes).encode()
    return Packed(program=program, files=files, modules=found)


def is_program(name: str) -> bool:
    """Return whether a program's name is the name of a generated program that runs a function (``run_….py``)."""
    return name.startswith(_PROGRAM) and name.endswith(".py")


def _dumps(value: Any, codes: list[types.CodeType] | None = None) -> bytes:
    """Pickle a value with cloudpickle, but keep the names of the files in code objects (:func:`_shown_file`).

    cloudpickle 3.1.3 removes these names. Without the names, tracebacks on the hosts would show no source lines.

    Args:
        value: The value.
        codes: A list to which all packed code objects are added: the code of the function, its helpers, classes and
            decorators.
    """
    import cloudpickle

    reduce = cloudpickle.Pickler.dispatch_table[types.CodeType]

    def with_file(code: types.CodeType) -> tuple[Any, ...]:
        if codes is not None:
            codes.append(code)
        made, parts = reduce(code)
        return made, tuple(_shown_file(code.co_filename) if part == _NO_FILE else part for part in parts)

    def with_cache(cached: Any) -> Any:
        """Pack a function that ``functools.lru_cache`` has decorated, with the function's code and an empty cache.

        cloudpickle 3.1.3 packs only the name of such a function. For a function of a module, the name suffices.
        """
        if modules.travels(cached):
            return functools.lru_cache(**cached.cache_parameters()), (cached.__wrapped__,)
        return cached.__reduce__()

    class Pickler(cloudpickle.Pickler):
        dispatch_table = cloudpickle.Pickler.dispatch_table.new_child(
            {types.CodeType: with_file, _CachedFunction: with_cache}
        )

    with io.BytesIO() as file:
        Pickler(file).dump(value)
        return file.getvalue()


def describe(
    function: Function,
    *,
    hyperparameters: Mapping[str, Any],
    channels: Collection[str],
    later: Mapping[str, Sequence[Any]] = types.MappingProxyType({}),
    added: Collection[str] = (),
) -> dict[str, Any]:
    """Return a JSON-serialisable description of a function.

    The program on the host reads the description before the program unpacks the function.

    Args:
        function: The function.
        hyperparameters: The job's hyperparameters, as for :func:`pack`.
        channels: The names of the job's channels, as for :func:`pack`.
        later: The tuned hyperparameters, as for :func:`pack`.
        added: The names of hyperparameters that the estimator adds, as for :func:`pack`.

    Raises:
        ConfigurationError: the parameters do not match the hyperparameters and channels.
    """
    name = name_of(function)
    parameters: list[dict[str, Any]] = []
    takes_others = False
    given = {*hyperparameters, *later}
    for parameter in _parameters(function, name):
        if parameter.kind is parameter.VAR_KEYWORD:
            takes_others = True
            continue
        required = parameter.default is parameter.empty
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            if required and parameter.kind is parameter.POSITIONAL_ONLY:
                raise ConfigurationError(
                    f"entry_point: {name}() takes {parameter.name!r} by position only, but hyperparameters are "
                    "passed by name. Remove the `/` from the function's parameters."
                )
            continue
        kind = _type_name(parameter.annotation)
        is_channel = kind == "Channel" or (parameter.name in channels and parameter.name not in given)
        parameters.append({"name": parameter.name, "type": kind, "required": required, "channel": is_channel})
    taken = {item["name"]: item for item in parameters}
    for key in (*hyperparameters, *later):
        item = taken.get(key)
        if item is None or item["channel"]:
            if item is None and takes_others:
                continue
            raise ConfigurationError(
                unknown(f"hyperparameter of {name}()", key, [n for n, other in taken.items() if not other["channel"]])
            )
        for value in later[key] if key in later else [hyperparameters[key]]:
            try:
                runner.convert(str(item["type"]), value)
            except (TypeError, ValueError):
                raise ConfigurationError(
                    f"hyperparameter {key!r}: {name}() expects {item['type']}, got {shown(value)}."
                ) from None
    known = {*hyperparameters, *later, *added}
    missing = [
        f"{'channel' if item['channel'] else 'hyperparameter'} {key!r}"
        for key, item in taken.items()
        if item["required"] and key not in (channels if item["channel"] else known)
    ]
    if missing:
        raise ConfigurationError(
            f"entry_point: {name}() needs {', '.join(missing)}. Pass hyperparameters={{…}} to the estimator and "
            "channels to fit(), or give the parameters defaults."
        )
    return {
        "name": name,
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "parameters": parameters,
        "takes_others": takes_others,
        "source": _source_of(function),
    }


# --- parameters ---


def _parameters(function: Function, name: str) -> list[inspect.Parameter]:
    try:
        if isinstance(function, functools.partial):  # only bind_partial's error names the cause
            inspect.signature(function.func).bind_partial(*function.args, **function.keywords)
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"entry_point: {name}() cannot be called like this: {error}.") from None


def _type_name(annotation: Any) -> str:
    """Return the name of a simple annotation, such as ``int`` or ``int | None``, or ``""`` for any other annotation.

    The annotation may be a string.
    """
    if isinstance(annotation, str):
        parts = [part.strip() for part in annotation.split("|")]
    elif typing.get_origin(annotation) in (typing.Union, types.UnionType):
        parts = [getattr(item, "__name__", "") for item in annotation.__args__]
    else:
        parts = [getattr(annotation, "__name__", "")]
    kinds = [part.rpartition(".")[2] for part in parts if part not in ("None", "NoneType")]
    if len(kinds) != 1 or kinds[0] not in _SIMPLE:
        return ""
    return kinds[0] + (runner.OR_NONE if len(parts) > 1 and kinds[0] != "Channel" else "")


def _inner(function: Function) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


# --- captured values ---


class Captured(NamedTuple):
    """The values and functions that are packed with a function.

    Attributes:
        values: Pairs of a name in the function's code and the value that the name refers to.
        functions: The functions that are packed with their code: the given function, and functions that it uses.
    """

    values: list[tuple[str, Any]]
    functions: list[types.FunctionType]


def captured(function: Function) -> Captured:
    """Return the values and functions that are packed with a function."""
    values: list[tuple[str, Any]] = []
    functions: list[types.FunctionType] = []
    seen: set[int] = set()
    waiting: list[Any] = [function]
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, _CachedFunction):
            one = one.__wrapped__
        if id(one) in seen:
            continue
        seen.add(id(one))
        found: dict[str, Any] = {}
        if inspect.ismethod(one):
            found["self"] = one.__self__
            one = one.__func__
        if isinstance(one, functools.partial):
            waiting.append(one.func)
            found.update((f"argument {number}", value) for number, value in enumerate(one.args, 1))
            found.update((f"argument {key!r}", value) for key, value in one.keywords.items())
        elif isinstance(one, types.FunctionType):
            for key, cell in zip(one.__code__.co_freevars, one.__closure__ or (), strict=True):
                with contextlib.suppress(ValueError):  # the variable has no value yet
                    found[key] = cell.cell_contents
            found.update((key, one.__globals__[key]) for key in sorted(_names(one.__code__)) if key in one.__globals__)
            found.update((f"default {number}", value) for number, value in enumerate(one.__defaults__ or (), 1))
            if modules.travels(one):
                functions.append(one)
            else:
                values.append((name_of(one), one))
        else:
            values.append((type(one).__name__, one))
        for key, value in found.items():
            if isinstance(value, _CachedFunction) and modules.travels(value):
                value = value.__wrapped__
            if isinstance(value, types.FunctionType) and modules.travels(value):
                waiting.append(value)
            elif not isinstance(value, types.ModuleType):
                values.append((key, value))
    return Captured(values, functions)


def _names(code: types.CodeType) -> set[str]:
    return {name for each in modules.nested(code) for name in each.co_names}


def _unpackable(name: str, function: Any, error: Exception) -> str:
    culprits = []
    for key, value in captured(function).values:
        path = _culprit(key, value, _DEPTH)
        if path is not None:
            culprits.append(path)
    said = "; ".join(culprits) or f"{type(error).__name__}: {error}"
    return (
        f"entry_point: {name}() uses values that cannot be pickled: {said}. Create them inside the function, or pass "
        "the values from which they are created."
    )


def _culprit(path: str, value: Any, depth: int) -> str | None:
    """Search a value for the item that cannot be pickled, and return the item's path, type and error as a text.

    Return None if the whole value can be pickled.

    Args:
        path: The value's name in the text.
        value: The value.
        depth: The maximum depth of the search in nested values.
    """
    try:
        _dumps(value)
    except Exception as error:  # noqa: BLE001 - the __reduce__ method of a value can raise any exception
        for part, inner in _parts(value) if depth else ():
            found = _culprit(f"{path}{part}", inner, depth - 1)
            if found is not None:
                return found
        kind = type(value)
        where = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        return f"{path} (a {where}{kind.__qualname__}: {_first_line(error)})"
    return None


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or repr(error)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"[{shown(key)}]", inner) for key, inner in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{number}]", inner) for number, inner in enumerate(value))
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        yield from ((f".{key}", inner) for key, inner in vars(value).items())


def _too_large(name: str, function: Any, size: int, limit: int) -> str:
    sizes = {}
    for key, value in captured(function).values:
        length = len(_dumps(value))
        if length > _NAMED:
            sizes[key] = length
    largest = ", ".join(
        f"{key} ({length / 1e6:.1f} MB)" for key, length in sorted(sizes.items(), key=lambda item: -item[1])
    )
    return (
        f"entry_point: {name}() captures {size / 1e6:.1f} MB of values, and the limit is {limit / 1e6:.1f} MB. The "
        f"values are: {largest or 'many small values'}. Pass data as a channel and load it in the function, or raise "
        "the limit with capture_limit=… (in bytes)."
    )


# --- sources ---


def _imports_of(function: Function, packed: bytes, codes: Iterable[types.CodeType]) -> str:
    """Return Python source that shows which modules the packed function will import. This source is never executed.

    The hosts search this source for imports, and for code with an effect on imports, because they cannot search the
    packed function. The source begins with the imports that unpickling causes, in the same order, because an import may
    have an effect on a later import. The source of the packed code follows.

    Args:
        function: The function.
        packed: The pickled function.
        codes: All code objects that are packed with the function.
    """
    places: dict[str, int] = {}
    for place, (_, text, _) in enumerate(pickletools.genops(packed)):
        if isinstance(text, str):
            places.setdefault(text, place)
    names = {_module_of(value) for value in _globals(function)} - {""}
    lines = [f"import {name}\n" for name in sorted(names, key=lambda name: (places.get(name, len(packed)), name))]
    try:
        texts = [textwrap.dedent("".join(_source_lines(code)[0])) for code in _outermost(codes)]
    except OSError:  # the source of some code is unknown
        return "".join(lines)
    body = textwrap.indent("".join(texts) or "pass\n", "    ")
    written = f"{''.join(lines)}\n\ndef _never_called():\n{body}"
    return written if _codes_of(written) else "".join(lines)  # a lambda within a call is no source, for example


def _outermost(codes: Iterable[types.CodeType]) -> Iterator[types.CodeType]:
    """Yield the code objects whose source is not part of the source of another code object."""
    found = list(codes)
    nested = {id(constant) for code in found for constant in code.co_consts}
    yield from (code for code in dict.fromkeys(found) if id(code) not in nested)


def _module_of(value: Any) -> str:
    """Return the name of the module that unpickling a value imports, or ``""`` if the name is unknown."""
    if isinstance(value, types.ModuleType):
        name = value.__name__
    else:
        name = (value if isinstance(value, type | types.FunctionType) else type(value)).__module__
    known = isinstance(name, str) and name in sys.modules and name not in ("__main__", "builtins")
    return name if known and all(map(str.isidentifier, name.split("."))) else ""


def _globals(function: Function) -> Iterator[Any]:
    """Yield the values of the global variables that the packed functions use."""
    for one in captured(function).functions:
        yield from (one.__globals__[key] for key in _names(one.__code__) if key in one.__globals__)


def _source_of(function: Function) -> dict[str, Any] | None:
    """Return a function's source text, file and first line, or None if the source is unknown."""
    code = getattr(inspect.unwrap(_inner(function)), "__code__", None)
    if code is None:
        return None
    try:
        lines, first = _source_lines(code)
    except OSError:
        return None
    return {"text": "".join(lines), "file": _shown_file(code.co_filename), "line": first}


def _source_lines(code: types.CodeType) -> tuple[list[str], int]:
    """Return the lines of a code object's source, and the number of the first line.

    Raises:
        OSError: the source is unknown, or the source file has been changed since Python read the file.
    """
    lines, _ = inspect.findsource(code)
    found = _codes_of("".join(lines), code.co_flags & __future__.annotations.compiler_flag)
    there = (one for one in found if (one.co_name, one.co_firstlineno) == (code.co_name, code.co_firstlineno))
    if _form_of(code) not in map(_form_of, there):
        raise OSError(f"{code.co_filename} has been changed")
    return inspect.getsourcelines(code)


@functools.lru_cache(maxsize=8)
def _codes_of(text: str, flags: int = 0) -> list[types.CodeType]:
    """Return all code objects of a program or notebook cell. Return an empty list if the text is not valid.

    Args:
        text: The text of the program.
        flags: The compiler flags of the ``__future__`` features that other cells of the notebook have imported.
    """
    flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT  # in notebook cells
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python has shown the warnings when it compiled the program itself
            return list(modules.nested(compile(text, "<source>", "exec", flags, dont_inherit=True)))
    except (SyntaxError, ValueError):
        return []


def _form_of(code: types.CodeType) -> tuple[Any, ...]:
    """Return the properties of a code object that depend only on its own source.

    Of the instructions, only operators are included. The other instructions also depend on the rest of the program,
    such as its imports, and notebooks compile each statement of a cell as a separate program.
    """
    instructions = ((one.opname, one.arg) for one in dis.get_instructions(code))
    return (
        code.co_name, code.co_firstlineno, code.co_names, code.co_varnames, code.co_freevars,
        tuple(one for one in instructions if one[0].startswith(_OPERATORS)),
        frozenset(line for *_, line in code.co_lines()),
        tuple(_form_of(one) if isinstance(one, types.CodeType) else (type(one), one) for one in code.co_consts),
    )  # fmt: skip


def _sources(function: Function) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each source file from which a traceback may show lines.

    These are the files that define the functions that are packed with their code.
    """
    for one in captured(function).functions:
        place = one.__code__.co_filename
        text = "".join(linecache.getlines(place, one.__globals__))
        if text and len(text) <= _LARGEST_SOURCE:
            yield _shown_file(place), text


def _shown_file(name: str) -> str:
    """Return the name of a source file for tracebacks: ``Cell In[3]`` for a notebook's cell, and otherwise ``name``.

    If several cells have the same number, for example because a cell has run another cell, ``name`` is returned for
    each of them.
    """
    ipython = sys.modules.get("IPython")
    compiler = getattr(ipython.get_ipython() if ipython is not None else None, "compile", None)
    cells = getattr(compiler, "_filename_map", {})  # IPython has no public access to it
    number = cells.get(name)
    return f"Cell In[{number}]" if number is not None and list(cells.values()).count(number) == 1 else name


def _files_of(package: types.ModuleType) -> list[Path]:
    return sorted(Path(next(iter(package.__path__))).glob("*.py"))
