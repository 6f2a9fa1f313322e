"""Convert a job's provenance to a script that runs the job again."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from estimators.job.redaction import MASK


def session(facts: Mapping[str, Any]) -> str:
    """Return the cells of the notebook or IPython session up to the cell that started the job, as one script.

    Return an empty text if the job was started elsewhere.

    Args:
        facts: The contents of ``provenance.json``.
    """
    caller = facts.get("caller") or {}
    cells = [*(caller.get("earlier_cells") or []), [caller.get("execution_count"), caller.get("cell")]]
    return "\n".join(f"# In[{count}]:\n{source}\n" for count, source in cells if source)


def script(
    job: str, facts: Mapping[str, Any], *, request: Mapping[str, Any] | None = None, function: bool = False
) -> str:
    """Return a shell script that runs a job again. Comments in the script name what is not on record, such as secrets.

    Args:
        job: The job's name.
        facts: The content of ``provenance.json``.
        request: The job's request. If hyperparameters are masked in the request, a comment in the script says so. With
            None, this is not checked.
        function: Whether the job's entry point was a function.
    """
    lines = ["#!/bin/sh", f"# Runs training job {job} again, in a folder of its own.", "set -e", ""]
    pending = [str(share) for share in facts.get("pending") or []]
    if pending:
        lines += [f"# Not on record (yet: it is collected until 30 s after the job's end): {', '.join(pending)}.", ""]
    folder = f"rerun-{job}"
    code, inside = _code(job, facts, folder)
    if function:
        code.append(f"# The job ran a function; its source code: fleetfit describe {job} --reproduce python")
    lines += [*code, "", *_environment(facts), "", *_data(facts), *_seeds(facts), *_variables(facts)]
    lines += _command(job, facts, inside)
    if request is not None and MASK in str(request.get("HyperParameters")):
        lines += ["", f"# Some hyperparameters looked secret and are {MASK} here. Give them again."]
    return "\n".join(lines) + "\n"


def _code(job: str, facts: Mapping[str, Any], folder: str) -> tuple[list[str], bool]:
    """Return the shell commands that check out the job's code into ``folder``, and whether they end in ``folder``.

    Without a recorded commit, the commands are only comments, and the second value is False.
    """
    git = facts.get("git") or {}
    snapshot = f"# The job's own copy of the code that ran is in its record: $FLEETFIT_HOME/jobs/{job}/source"
    if not git.get("commit"):
        why = "before the first commit of its repository" if git else "outside a git repository"
        return [f"# 1. The code: the job was started {why}.", snapshot], False
    root, commit = str(git.get("root")), str(git["commit"])
    branch = f" ({git['branch']})" if git.get("branch") else ""
    lines = [
        f"# 1. The code: commit {commit[:12]}{branch}" + (", with uncommitted changes" if git.get("dirty") else "")
    ]
    checkout = f'git -C {shlex.quote(root)} worktree add --detach "$PWD/{folder}" {commit}'
    if git.get("remote"):
        lines += [
            f"if [ -d {shlex.quote(root)} ]; then",
            f"  {checkout}",
            "else",
            f"  git clone {shlex.quote(str(git['remote']))} {folder} && git -C {folder} checkout --detach {commit}",
            "fi",
        ]
    else:
        lines.append(checkout)
    lines.append(f"cd {folder}")
    if git.get("diff"):
        lines += _file("git apply", str(git["diff"]).removesuffix("\n"))
    if git.get("diff_truncated"):
        lines.append(f"# The changes are not on record: {git['diff_truncated']}.")
    left_out = [str(name) for name in git.get("untracked_left_out") or []]
    if left_out:
        shown = ", ".join(left_out[:5]) + (" …" if len(left_out) > 5 else "")
        lines.append(f"# Untracked files that were too large to be kept: {shown}")
    return [*lines, snapshot], True


def _environment(facts: Mapping[str, Any]) -> list[str]:
    python, packages = facts.get("python") or {}, facts.get("packages") or {}
    version = str(python.get("version") or "3")
    short = ".".join(version.split(".")[:2])
    lines = [f"# 2. The environment: Python {version}"]
    software = facts.get("software") or {}
    versions = [f"{name} {software[name]}" for name in ("tensorflow", "tensorflow-cpu", "horovod", "mpirun")
                if name in software]  # fmt: skip
    if versions:
        lines[0] += f", {', '.join(versions)}"
    if not packages.get("freeze"):
        return [*lines, "# The packages are not on record."]
    # `fleetfit install` builds Horovod for the environment, because the package index has no wheel of Horovod.
    plain = [line for line in packages["freeze"] if not line.startswith("horovod")]
    lines += _file("cat > requirements-rerun.txt", "\n".join(plain))
    lines += [f"python{short} -m venv .venv-rerun", ". .venv-rerun/bin/activate"]
    lines.append("python -m pip install --requirement requirements-rerun.txt")
    if len(plain) < len(packages["freeze"]):
        both = "torch" in software and not software.keys().isdisjoint({"tensorflow", "tensorflow-cpu"})
        lines.append(f"fleetfit install horovod{' tensorflow torch' if both else ''}")
    return lines


def _file(command: str, text: str) -> list[str]:
    """Return the lines of a shell script that run a command with a text as its standard input (a here-document)."""
    end = "END"
    while end in text:
        end += "_"
    return [f"{command} <<'{end}'", text, end]


def _data(facts: Mapping[str, Any]) -> list[str]:
    data = facts.get("data") or {}
    lines: list[str] = []
    for channel, entry in data.items():
        if "digest" not in entry:
            lines.append(f"#    {channel}: {entry.get('path')} ({entry.get('error', 'unknown')})")
            continue
        whole = "" if entry.get("complete") else ", contents read only in part"
        lines.append(
            f"#    {channel}: {entry['path']}, {entry['files']} files, {entry['bytes']} bytes{whole}, "
            f"digest {entry['digest']}"
        )
    return ["# The data was:", *lines, ""] if lines else []


def _seeds(facts: Mapping[str, Any]) -> list[str]:
    seeds = facts.get("seeds") or {}
    if not seeds:
        return ["# No seed was given: numbers will differ from run to run.", ""]
    return [f"# Seeds: {', '.join(f'{name}={value}' for name, value in seeds.items())}", ""]


def _variables(facts: Mapping[str, Any]) -> list[str]:
    # Leave out variables with paths of this machine. The environment of step 2 sets its own paths.
    places = ("VIRTUAL_ENV", "CONDA_", "FLEETFIT_", "LD_", "PYTHONPATH")
    values = {n: v for n, v in (facts.get("environment") or {}).items() if not n.startswith(places)}
    lines = [
        f"# export {name}=…  (it looked secret)" if value == MASK else f"export {name}={shlex.quote(str(value))}"
        for name, value in values.items()
    ]
    return ["# Environment variables that affect the training", *lines, ""] if lines else []


def _command(job: str, facts: Mapping[str, Any], inside: bool) -> list[str]:
    caller = facts.get("caller") or {}
    lines = ["# 3. The run"]
    cwd, root = caller.get("cwd"), (facts.get("git") or {}).get("root")
    if cwd and inside and root and Path(cwd).is_relative_to(root):
        below = Path(cwd).relative_to(root)
        if str(below) != ".":
            lines.append(f"cd {shlex.quote(str(below))}")
    elif cwd:
        lines.append(f"cd {shlex.quote(str(cwd))}")
    if caller.get("kind") in ("notebook", "ipython"):
        where = f"notebook {caller['notebook']}" if caller.get("notebook") else "a notebook"
        lines += [
            f"# The job was started from {where}, cell {caller.get('execution_count')}:",
            *(f"#     {line}" for line in str(caller.get("cell") or "").splitlines()),
            "# To run that cell after the cells that were executed before it:",
            f"fleetfit describe {job} --reproduce python > rerun.ipy && ipython rerun.ipy",
        ]
        return lines
    argv = [str(argument) for argument in caller.get("argv") or []]
    if caller.get("kind") == "interactive" or len(argv) < 2 or argv[1] == "-":
        lines.append(f"# The job was started from an interactive Python or standard input: {shlex.join(argv)}")
        return lines
    if MASK in " ".join(argv):
        lines.append(f"# An argument looked secret and is {MASK} here. Give it again.")
    if any(argument.split("=")[0] == "--name" for argument in argv):
        lines.append("# A job name can be used only once: give another --name.")
    lines.append(shlex.join(_portable(argv, str(cwd) if cwd else None, str(root) if inside and root else None)))
    return lines


def _portable(argv: list[str], cwd: str | None, root: str | None) -> list[str]:
    """Return the command without paths that exist only on this machine.

    The path of the program is replaced by its name (``fleetfit`` or ``python``). Paths in the repository are replaced
    by relative paths.
    """
    program = Path(argv[1])
    console_script = program.name == "fleetfit" and program.parent.name == "bin"
    rest = argv[2:] if console_script else argv[1:]
    if root is not None and cwd is not None and Path(cwd).is_relative_to(root):
        rest = [os.path.relpath(item, cwd) if item.startswith(root + os.sep) else item for item in rest]
    return ["fleetfit" if console_script else "python", *rest]
