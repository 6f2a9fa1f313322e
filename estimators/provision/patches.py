"""Apply ``horovod.patch``. The patch changes Horovod 0.28.1 so that it builds and runs with current frameworks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

#: Increase this number with every change of the patch. The wheel's version and the cache's key contain the number.
REVISION = 3

PATCH = Path(__file__).with_name("horovod.patch")


class PatchMismatch(Exception):
    """Raised if Horovod's source differs from the source for which the patch was written."""


def hunks(patch: str) -> Iterator[tuple[str, str, str]]:
    """Yield the hunks of a unified diff: the path of the file, the old passage, and the new passage."""
    for changed in re.split(r"^--- a/", patch, flags=re.MULTILINE)[1:]:
        path, *parts = re.split(r"^@@ .*\n", changed, flags=re.MULTILINE)
        for part in parts:
            lines = re.match(r"(?:[-+ ].*\n)*", part)[0].splitlines(keepends=True)  # type: ignore[index]
            before = "".join(line[1:] for line in lines if line[0] != "+")
            yield path.partition("\n")[0], before, "".join(line[1:] for line in lines if line[0] != "-")


def apply(root: Path) -> None:
    """Apply the patch to an unpacked Horovod source.

    Raises:
        PatchMismatch: an old passage does not occur exactly once in its file.
    """
    for path, before, after in hunks(PATCH.read_text(encoding="utf-8")):
        text = (root / path).read_text(encoding="utf-8")
        if (count := text.count(before)) != 1:
            raise PatchMismatch(f"{path}: the passage to change occurs {count} times, not once: {before!r}")
        (root / path).write_text(text.replace(before, after), encoding="utf-8")
