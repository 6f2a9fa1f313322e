"""Parse the command lines of the agent's commands.

argparse is not used, because importing argparse takes longer.
"""

from __future__ import annotations

from collections.abc import Sequence


class Words:
    """The options of a command line.

    Args:
        argv: The command line, without the command.
        options: The options that have a value. An option may be given several times.
        flags: The options without a value.

    Raises:
        ValueError: the command line has another option, or the value of an option is missing.
    """

    def __init__(self, argv: Sequence[str], options: Sequence[str], flags: Sequence[str] = ()) -> None:
        self._values: dict[str, list[str]] = {}
        rest = list(argv)
        while rest:
            option = rest.pop(0)
            values = self._values.setdefault(option, [])
            if option in options and rest:
                values.append(rest.pop(0))
            elif option not in flags:
                raise ValueError(f"{option!r} is not an option, or needs a value")

    def __contains__(self, option: str) -> bool:
        """Return whether an option or a flag is given."""
        return option in self._values

    def all(self, option: str) -> list[str]:
        """Return the values of an option.

        Raises:
            ValueError: the option is not given.
        """
        if option not in self:
            raise ValueError(f"{option} is missing")
        return self._values[option]

    def one(self, option: str, default: str | None = None) -> str:
        """Return the value of an option.

        Raises:
            ValueError: the option is given more than once, or is not given and has no default.
        """
        if option not in self and default is not None:
            return default
        if len(values := self.all(option)) > 1:
            raise ValueError(f"{option} must be given once")
        return values[0]
