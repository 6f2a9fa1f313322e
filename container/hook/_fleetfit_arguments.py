"""Detect hyperparameters that a script's argparse silently misinterprets or drops.

``sitecustomize`` in this folder imports this module. When the script imports argparse, ``sitecustomize`` uses this
module to wrap argparse's parser. A parser that accepts only its own arguments (``parse_args()``) reports errors itself.
But ``parse_known_args()``, which SageMaker's examples use, ignores unknown arguments, and ``type=bool`` reads any text
as True. The code works with Python 3.6, and an error in this module never reaches the script.
"""

import os
import sys

_FALSE = ("false", "no", "off", "0", "none")
#: Minimum similarity of two names for a suggestion. ``--epoch`` and ``--epochs`` are similar enough. ``--model_dir``
#: and ``--model_dim`` are not.
_ALIKE = 0.92


def wrap(argparse, tell):  # type: ignore[no-untyped-def]
    """Make the script's parsers check how they have interpreted the job's arguments.

    Args:
        argparse: The module ``argparse``.
        tell: A function that is called with each warning for the user.
    """
    import atexit
    import functools

    parse = argparse.ArgumentParser.parse_known_args
    said = set()
    waiting = {}  # type: ignore[var-annotated]  # warnings about arguments that a later parser may still accept

    def say(text):  # type: ignore[no-untyped-def]
        if text not in said:
            said.add(text)
            tell(text)

    @functools.wraps(parse)
    def parse_known_args(self, args=None, *others, **more):  # type: ignore[no-untyped-def]
        found = parse(self, args, *others, **more)
        try:
            caller = sys._getframe(1).f_code.co_name
            for name in self._option_string_actions:
                waiting.pop(name, None)
            if (args is None or list(args) == sys.argv[1:]) and "intermixed" not in caller:
                values, rest = found
                of_all = caller == "parse_args"
                for name, text in remarks(self, sys.argv[1:], vars(values), [] if of_all else rest):
                    if name:
                        waiting[name] = text
                    else:
                        say(text)
        except Exception:  # noqa: BLE001 - an error here must not affect the script
            pass
        return found

    def leave():  # type: ignore[no-untyped-def]
        for text in waiting.values():
            say(text)

    argparse.ArgumentParser.parse_known_args = parse_known_args
    atexit.register(leave)


def remarks(parser, arguments, values, rest):  # type: ignore[no-untyped-def]
    """Yield a warning for each argument that the parser has probably misinterpreted or dropped.

    Args:
        parser: The script's parser.
        arguments: The arguments that were parsed.
        values: The parsed values, by name.
        rest: The arguments that the parser did not know.

    Yields:
        The name of the option, and the warning. The warning is void if the script later uses a parser that has the
        option. For a warning that is valid in any case, the name is "".
    """
    options = parser._option_string_actions
    job = os.environ.get("SM_USER_ARGS", "")
    if "--" in arguments:
        arguments = arguments[: arguments.index("--")]
    given = [word.partition("=")[0] for word in arguments]
    for place, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if not name.startswith("-") or not name.strip("-") or '"' + name not in job:
            continue
        if not equals:
            value = arguments[place + 1] if place + 1 < len(arguments) else ""
        action = options.get(name)
        if action is None:
            near = _near(name, [option for option in options if option not in given]) if word in rest else None
            if near is not None:
                yield name, f"the script's parser has no {name}, and returned it as unknown: did you mean {near}?"
        elif action.nargs and values.get(action.dest) == [value] and _is_list(value):
            yield (
                "",
                f"{name} {value} is a single text in the script, whose parser takes several values for it. Pass the "
                f"values with arguments=['{name}', …].",
            )
        elif value.lower() in _FALSE:
            is_true = values.get(action.dest) is True
            if getattr(action, "type", None) is bool and is_true:
                yield (
                    "",
                    f"{name} {value} is True in the script: its parser has type=bool, which reads every text as "
                    "True except an empty one. Pass '', or let the script read the text.",
                )
            elif action.nargs == 0 and value in rest and is_true:
                yield (
                    "",
                    f"{name} {value} is True in the script, whose parser takes no value for it (store_true). To switch "
                    "the option off, leave the hyperparameter out; to switch it on, pass arguments=[…].",
                )


def _is_list(text):  # type: ignore[no-untyped-def]
    """Return whether a text is a list as Python writes it, such as ``[1, 2]``. ``[CLS]`` is no list."""
    if not text.startswith("["):
        return False
    import ast

    try:
        return isinstance(ast.literal_eval(text), list)
    except (ValueError, SyntaxError):
        return False


def _near(name, options):  # type: ignore[no-untyped-def]
    """Return the option that the user probably meant. Return None if there is no such option.

    Such an option differs from ``name`` only in dashes, underscores or case, or is very similar to ``name``.
    """
    options = [option for option in options if option.startswith("--") and len(option) > 3]
    if not name.startswith("--"):
        return None
    same = [option for option in options if _plain(option) == _plain(name)]
    if same:
        return same[0]
    from difflib import get_close_matches

    near = get_close_matches(name, [option for option in options if _digits(option) == _digits(name)], 1, _ALIKE)
    return near[0] if near else None


def _digits(name):  # type: ignore[no-untyped-def]
    return [sign for sign in name if sign.isdigit()]


def _plain(name):  # type: ignore[no-untyped-def]
    return name.replace("-", "").replace("_", "").lower()
