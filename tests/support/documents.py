"""Runs the fenced blocks of the README and the docs, so that they cannot drift from what happens.

``python tests/support/documents.py DOCUMENT PROJECT`` runs a document's blocks one after another in a working folder
made from ``tests/integration/docs/PROJECT``. What a block is run as is its language:

- ``python``: executed; all of a document's blocks share one namespace, which ``prepare.py`` of the project may fill.
- ``sh``: executed by bash; exported variables last.
- ``console``: lines that begin with ``$ `` are executed by bash, each has to print the lines below it.
- ``text``, ``dockerfile``, ``yaml``: not executed.

A comment above a block says more, one instruction a line:

- ``<!-- runner: skip REASON -->``: not executed, and why.
- ``<!-- runner: needs docker -->``: executed only where that is given to the runner.
- ``<!-- runner: file NAME -->``: written to that file instead.
- ``<!-- runner: script NAME -->``: takes the place of the line ``# DOCUMENTED`` in the project's file of that name.
- ``<!-- runner: then COMMAND -->``: a command that is executed after it.
- ``<!-- runner: fails -->``: has to end with an exit code other than 0.
- ``<!-- runner: until TEXT -->``: stays in the background from the moment in which it has printed that text.
- ``<!-- runner: output -->``: of a ``text`` block: what the executed block before it has to print.

Expected lines are compared without their figures; ``…`` stands for anything. They may come in any order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROJECTS = ROOT / "tests" / "integration" / "docs"
LANGUAGES = ("python", "sh", "console", "text", "dockerfile", "yaml")
VERBS = ("skip", "needs", "file", "script", "then", "fails", "until", "output")
MARKER = "# DOCUMENTED"

_FENCE = re.compile(r"^```(\S*)\s*$")
_COMMENT = re.compile(r"^<!-- runner: (\w+)(?: (.*?))? -->$")


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        document: Its file.
        line: The number of its first line, from 1.
        language: What stands behind the fence.
        text: Its lines.
        instructions: Verb → what stands behind it.
    """

    document: Path
    line: int
    language: str
    text: str
    instructions: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"

    @property
    def executed(self) -> bool:
        """Whether it is something to execute (or to write), if what it needs is there."""
        return "skip" not in self.instructions and (
            self.language in ("python", "sh", "console") or "file" in self.instructions
        )


def documents() -> list[Path]:
    """The README and every page of the docs."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(document: Path) -> list[Block]:
    """Read a document's fenced blocks.

    Raises:
        ValueError: an unknown language or instruction, or an instruction above something else than a block.
    """
    found: list[Block] = []
    instructions: dict[str, str] = {}
    opened: tuple[int, str] | None = None
    lines: list[str] = []
    for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), 1):
        fence, comment = _FENCE.match(line), _COMMENT.match(line)
        if opened is not None:
            if line == "```":
                found.append(Block(document, opened[0] + 1, opened[1], "\n".join(lines) + "\n", instructions))
                opened, lines, instructions = None, [], {}
            else:
                lines.append(line)
        elif fence:
            if fence[1] not in LANGUAGES:
                raise ValueError(f"{document}:{number}: the language {fence[1]!r} is none of {', '.join(LANGUAGES)}")
            opened = (number, fence[1])
        elif comment:
            if comment[1] not in VERBS:
                raise ValueError(f"{document}:{number}: {comment[1]!r} is none of {', '.join(VERBS)}")
            instructions[comment[1]] = comment[2] or ""
        elif instructions:
            raise ValueError(f"{document}:{number}: instructions to the runner, but no block follows")
    return found


def that_need(what: str) -> list[Path]:
    """The documents with blocks that need something."""
    return [page for page in documents() if any(block.instructions.get("needs") == what for block in blocks(page))]


def shape(line: str) -> str:
    """What has to be the same of a line: everything but figures, and how wide things are."""
    line = re.sub(r"\d[\d.,]*(?:e-?\d+)?", "0", line)
    line = re.sub(r"(?<!\w)-(?=0)", "", line)
    line = re.sub(r"0 (?:ms|s|min|h)\b(?: 0 (?:s|min)\b)?|0(?:ms|s)\b", "0 s", line)
    line = re.sub(r"[─━=\[\]>.]{8,}", "", line)
    return re.sub(r"\s+", " ", line).strip()


def missing(expected: str, printed: str) -> list[str]:
    """The expected lines that were not printed."""
    printed = printed.replace(str(Path.home()), "~")
    lines = [shape(line) for line in re.split(r"[\r\n]+", _unwrapped(printed))]
    wanted = [line for line in _unwrapped(expected).splitlines() if line.strip() and line.strip() != "…"]
    absent = []
    for line in wanted:
        pattern = re.compile(".*".join(re.escape(part) for part in shape(line).split("…")))
        if not any(pattern.fullmatch(one) for one in lines):
            absent.append(line)
    return absent


def _unwrapped(text: str) -> str:
    """The closing table's rows, each in one line: where they wrap depends on the figures."""
    return re.sub(r"\n {12,}(?=\S)", " · ", text)


def commands(text: str) -> list[tuple[str, str]]:
    """The commands of a console, each with the lines that it prints."""
    found: list[tuple[list[str], list[str]]] = []
    goes_on = False
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append(([line[2:]], []))
        elif goes_on:
            found[-1][0].append(line)
        elif found:
            found[-1][1].append(line)
        else:
            raise ValueError(f"a console begins with '$ ', not with {line!r}")
        goes_on = line.endswith("\\") and not found[-1][1]
    return [("\n".join(command), "\n".join(printed)) for command, printed in found]


class Drift(AssertionError):
    """A block did not do what the document says."""


class Runner:
    """Runs one document's blocks in the current folder.

    Args:
        given: What there is of what blocks need.
    """

    def __init__(self, given: frozenset[str] = frozenset()) -> None:
        self._given = given
        self._namespace: dict[str, Any] = {"__name__": "__main__"}
        self._state = Path(".exported").resolve()
        self._outputs = Path(".outputs").resolve()
        self._outputs.mkdir()
        self._printed = ""
        self._background: list[subprocess.Popen[bytes]] = []

    def prepare(self, file: Path) -> None:
        """Execute what a document takes for granted."""
        self._python(file.read_text(encoding="utf-8"), str(file))

    def run(self, block: Block) -> bool:
        """Run a block; returns whether there was something to run.

        Raises:
            Drift: it failed, or printed something else.
        """
        needed = block.instructions.get("needs")
        if needed is not None and needed not in self._given:
            return False
        if "output" in block.instructions:
            self._compare(block, block.text, self._printed)
            return True
        if not block.executed:
            return False
        if "file" in block.instructions:
            Path(block.instructions["file"]).write_text(block.text, encoding="utf-8")
        elif "script" in block.instructions:
            script = Path(block.instructions["script"])
            around = script.read_text(encoding="utf-8")
            if MARKER not in around:
                raise Drift(f"{block}: {script} has no line {MARKER!r}")
            script.write_text(around.replace(MARKER, block.text), encoding="utf-8")
        elif block.language == "python":
            with self._capturing():
                self._python(block.text, str(block), first_line=block.line)
        elif block.language == "sh":
            self._shell(block, block.text)
        else:
            for command, expected in commands(block.text):
                self._shell(block, command)
                self._compare(block, expected, self._printed)
        if "then" in block.instructions:
            self._shell(block, block.instructions["then"])
        return True

    def end(self) -> None:
        """End what stays in the background."""
        for process in self._background:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._background:
            process.wait(60)

    def _python(self, text: str, name: str, first_line: int = 1) -> None:
        code = compile("\n" * (first_line - 1) + text, name, "exec")
        exec(code, self._namespace)

    @contextlib.contextmanager
    def _capturing(self) -> Iterator[None]:
        """Keep what is printed meanwhile, also by other processes."""
        file = self._outputs / f"{len(list(self._outputs.iterdir()))}.txt"
        sys.stdout.flush()
        sys.stderr.flush()
        kept = os.dup(1), os.dup(2)
        with file.open("wb") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, descriptor in enumerate(kept, 1):
                os.dup2(descriptor, number)
                os.close(descriptor)
            self._printed = file.read_text(encoding="utf-8", errors="replace")
            print(self._printed, end="", flush=True)

    def _shell(self, block: Block, command: str) -> None:
        state = shlex.quote(str(self._state))
        before = f"[ ! -f {state} ] || . {state}\n"
        after = f"\n__code=$?; export -p > {state}; exit $__code"
        argv = ["bash", "-c", before + command + after]
        until = block.instructions.get("until")
        print(f"$ {command}", flush=True)
        file = self._outputs / f"{len(list(self._outputs.iterdir()))}.txt"
        with file.open("wb") as output:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
            self._background.append(process)
            if until is None:
                process.wait()
            else:
                while until not in file.read_text(errors="replace") and process.poll() is None:
                    time.sleep(0.02)
        self._printed = file.read_text(encoding="utf-8", errors="replace")
        print(self._printed, end="", flush=True)
        if until is not None:
            if until not in self._printed:
                raise Drift(f"{block}: it ended without {until!r}")
            return
        if (process.returncode != 0) is not ("fails" in block.instructions):
            raise Drift(f"{block}: the command ended with exit code {process.returncode}: {command}")
        for name, value in _exported(self._state).items():
            os.environ[name] = value

    def _compare(self, block: Block, expected: str, printed: str) -> None:
        absent = missing(expected, printed)
        if absent:
            raise Drift(f"{block}: the document has lines that were not printed:\n" + "\n".join(absent))


def _exported(file: Path) -> dict[str, str]:
    """The variables that a shell has exported to a file."""
    printed = subprocess.run(
        ["env", "-i", "bash", "-c", f". {shlex.quote(str(file))}; env -0"], capture_output=True, text=True, check=True
    ).stdout
    pairs = [pair.split("=", 1) for pair in printed.split("\0") if "=" in pair]
    return {name: value for name, value in pairs if name not in ("_", "SHLVL", "PWD", "OLDPWD")}


def lay_out(project: str, folder: Path) -> None:
    """Make a working folder: the project's files beside the checkout's ``entrypoints`` and ``examples``."""
    source = PROJECTS / project
    if source.is_dir():
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns("prepare.py", "__pycache__"), dirs_exist_ok=True)
    folder.mkdir(exist_ok=True)
    for name in ("entrypoints", "examples"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)


def main(argv: list[str]) -> int:
    """Run a document's blocks in the current folder; what is given follows the document's and the project's names."""
    document, project, *given = argv
    runner = Runner(frozenset(given))
    ran = 0
    failures: list[str] = []
    try:
        prepare = PROJECTS / project / "prepare.py"
        if prepare.is_file():
            runner.prepare(prepare)
        for block in blocks(Path(document)):
            if given and block.instructions.get("needs") not in given:
                continue  # another test runs these
            print(f"── {block}", flush=True)
            try:
                ran += runner.run(block)
            except Exception as error:  # noqa: BLE001 - whatever a block raises: the others are run, too
                failures.append("".join(traceback.format_exception(error)))
    finally:
        runner.end()
    for failure in failures:
        print(failure, flush=True)
    print(f"{ran} blocks, {len(failures)} failed", flush=True)
    return 1 if failures or not ran else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
