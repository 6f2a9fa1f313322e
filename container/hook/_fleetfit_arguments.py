"""Notices hyperparameters that a script's argparse takes for something else, or drops, without a word.

``sitecustomize`` beside it imports this, and wraps argparse's parser with it when the script imports argparse. A parser
says so itself where it takes all arguments (``parse_args()``); ``parse_known_args()``, which SageMaker's examples use,
leaves the rest over, and ``type=bool`` takes any text for True.

It keeps to what Python 3.6 knows, and a fault in here never becomes the script's.
"""

import os
import sys

_FALSE = ("false", "no", "off", "0", "none")
#: From where on two names are taken for one: ``--epoch`` and ``--epochs``, but not ``--model_dir`` and ``--model_dim``.
_ALIKE = 0.92


def wrap(argparse, tell):  # type: ignore[no-untyped-def]
    """Have the parsers of scripts look at what became of the job's arguments.

    Args:
        argparse: The module.
        tell: Called with each text that the user should know.
    """
    import functools

    parse = argparse.ArgumentParser.parse_known_args

    @functools.wraps(parse)
    def parse_known_args(self, args=None, *others, **more):  # type: ignore[no-untyped-def]
        found = parse(self, args, *others, **more)
        try:
            if args is None or list(args) == sys.argv[1:]:
                values, rest = found
                of_all = sys._getframe(1).f_code.co_name == "parse_args"
                for text in remarks(self, sys.argv[1:], vars(values), [] if of_all else rest):
                    tell(text)
        except Exception:  # noqa: BLE001 - the script must go on as it would have
            pass
        return found

    argparse.ArgumentParser.parse_known_args = parse_known_args


def remarks(parser, arguments, values, rest):  # type: ignore[no-untyped-def]
    """Return what the user should know.

    Args:
        parser: The script's.
        arguments: What it was given.
        values: What it made of them, by their names.
        rest: What it left over.
    """
    options = parser._option_string_actions
    job = os.environ.get("SM_USER_ARGS", "")
    found = []
    for place, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if not name.startswith("-") or not name.strip("-") or '"' + name not in job:
            continue
        if not equals:
            value = arguments[place + 1] if place + 1 < len(arguments) else ""
        action = options.get(name)
        if action is None:
            near = _near(name, [option for option in options if option not in arguments]) if word in rest else None
            if near is not None:
                found.append(f"the script's parser has no {name}, and dropped it: was {near} meant?")
        elif value.lower() in _FALSE:
            is_true = values.get(action.dest) is True
            if getattr(action, "type", None) is bool and is_true:
                found.append(
                    f"{name} {value} is True in the script: its parser has type=bool, which takes any text but the "
                    "empty one for True. Pass '', or have the script read the text."
                )
            elif action.nargs == 0 and value in rest and is_true:
                found.append(
                    f"{name} {value} is True in the script, whose parser takes no value for it (store_true). Leave the "
                    "hyperparameter out where it is off, and pass arguments=[…] where it is on."
                )
    return found


def _near(name, options):  # type: ignore[no-untyped-def]
    """The option that was meant: the same but for dashes, underlines and capitals, or nearly the same."""
    same = [option for option in options if _plain(option) == _plain(name)]
    if same:
        return same[0]
    from difflib import get_close_matches

    near = get_close_matches(name, [option for option in options if option.startswith("--")], 1, _ALIKE)
    return near[0] if near else None


def _plain(name):  # type: ignore[no-untyped-def]
    return name.replace("-", "").replace("_", "").lower()
