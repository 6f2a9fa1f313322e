"""The commands that run a job again, from provenance of all kinds."""

import shlex
from typing import Any

import pytest
from synthetic import COMMIT
from synthetic import provenance as facts

from estimators.records.provenance import reproduce


def script(**changes: Any) -> str:
    text = reproduce.script("job", facts(**changes))
    shlex.split(text, comments=True)  # its quotes are closed
    return text


def test_a_command_in_a_repository() -> None:
    text = script()
    for line in (
        f'git -C /repo worktree add --detach "$PWD/rerun-job" {COMMIT}',
        f"git clone https://example.org/r.git rerun-job && git -C rerun-job checkout --detach {COMMIT}",
        "git apply <<'END'\ndiff --git a/x b/x\nEND\n",
        "cat > requirements-rerun.txt <<'END'\ntensorflow==2.21.0\nEND\n",
        "python3.12 -m venv .venv-rerun",
        "fleetfit install horovod",
        "big.bin",
        "train: /d, 2 files, 10 bytes, contents read only in part, digest abc",
        "Seeds: seed=3",
        "export TF_ENABLE_ONEDNN_OPTS=0",
        "cd code",
        "python fit.py --data ../data --out '/tmp/x y'",
    ):
        assert line in text
    assert "LD_LIBRARY_PATH" not in text
    assert "export TF_API_TOKEN" not in text.replace("# export TF_API_TOKEN", "")
    order = ["worktree add", "git apply", "-m venv", "pip install", "python fit.py"]
    assert sorted(order, key=text.index) == order


def test_the_shells_own_command() -> None:
    argv = ["/env/bin/python3", "/env/bin/fleetfit", "train", "t.py", "--name", "job"]
    text = script(caller={"kind": "command", "argv": argv, "cwd": "/repo"})
    assert "\nfleetfit train t.py --name job\n" in text
    assert "used only once" in text


def test_a_notebook() -> None:
    caller = {
        "kind": "notebook", "argv": ["python", "-m", "ipykernel"], "cwd": "/repo", "notebook": "/repo/a.ipynb",
        "cell": "job = fit()\nprint(job)", "execution_count": 3, "earlier_cells": [[1, "import x"], [2, "y = 1"]],
    }  # fmt: skip
    text = script(caller=caller)
    assert "notebook /repo/a.ipynb, cell 3" in text
    assert "#     job = fit()\n#     print(job)\n" in text
    assert "--reproduce python > rerun.ipy && ipython rerun.ipy" in text
    values = facts(caller=caller)
    assert reproduce.session(values) == ("# In[1]:\nimport x\n\n# In[2]:\ny = 1\n\n# In[3]:\njob = fit()\nprint(job)\n")
    assert reproduce.session(facts()) == ""


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"git": None}, "outside a git repository"),
        ({"git": {"root": "/r", "commit": None}}, "before the first commit"),
        ({"packages": None, "pending": ["packages", "data"]}, "after the job's end): packages, data"),
        ({"packages": None}, "packages are not on record"),
        ({"seeds": {}}, "No seed was given"),
        ({"caller": {"kind": "interactive", "argv": ["python"], "cwd": "/x"}}, "interactive Python"),
        ({"caller": {"kind": "command", "argv": ["python", "-"], "cwd": None}}, "standard input"),
        ({"caller": {"kind": "command", "argv": ["python", "t.py", "--token", "***"], "cwd": "/x"}}, "looked secret"),
        ({"git": {**facts()["git"], "diff": "", "diff_truncated": "the changes are larger than 2 MiB"}}, "2 MiB"),
        ({"data": {"train": {"path": "/gone", "error": "No such file"}}}, "/gone (No such file)"),
        ({"git": None, "caller": {}, "packages": {}, "data": None, "environment": None}, "3. The run"),
    ],
)
def test_what_is_missing_is_said(changes: dict[str, Any], part: str) -> None:
    assert part in script(**changes)


def test_a_patch_may_hold_any_line() -> None:
    patch = "diff --git a/x b/x\n+END\n"
    assert f"git apply <<'END_'\n{patch}END_\n" in script(git={**facts()["git"], "diff": patch})


def test_secret_hyperparameters_are_mentioned() -> None:
    text = reproduce.script("job", facts(), request={"HyperParameters": {"api_key": "***"}})
    assert "Some hyperparameters looked secret" in text
