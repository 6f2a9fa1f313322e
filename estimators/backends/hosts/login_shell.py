"""Quote commands so that any login shell runs them unchanged."""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Sequence

#: tcsh allows neither line breaks nor ``!`` within quotes; fish interprets backslashes there.
_DIFFERS = re.compile(r"[\n\\!]")


def line(argv: Sequence[str]) -> str:
    """Return a command line that runs a command in any login shell: sh, bash, zsh, fish or csh.

    A command with characters that shells interpret differently is encoded as base64. ``sh`` decodes and runs the
    command.
    """
    words = shlex.join(argv)
    if _DIFFERS.search(words) is None:
        return words
    coded = base64.b64encode(words.encode("utf-8", "surrogateescape")).decode("ascii")
    return f"sh -c 'eval \"exec `echo {coded} | base64 -d || echo false`\"'"
