"""The caller's share: command lines and notebook cells."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, os, sys, time
from estimators.records.provenance import caller_facts
times = []
for _ in range(5):
    begin = time.perf_counter()
    facts = caller_facts(hyperparameters={"seed": 1})
    times.append(time.perf_counter() - begin)
modules = sorted(sys.modules)
os.mkdir("gone"); os.chdir("gone"); os.rmdir("../gone")
print(json.dumps([facts, caller_facts(), min(times), modules]))
"""


def test_a_command_is_known_by_its_whole_line(tmp_path: Path) -> None:
    script = tmp_path / "start.py"
    script.write_text(SCRIPT)
    given = ["--lr", "0.1 x", "--api-key", "hidden", "TOKEN=hidden"]

    def run(*command: str) -> list:
        done = subprocess.run(
            [sys.executable, *command, *given], capture_output=True, check=True, cwd=tmp_path, timeout=60
        )
        return json.loads(done.stdout)

    facts, of_no_folder, fastest, modules = run(str(script))
    assert facts["caller"]["kind"] == "command"
    expected = [sys.executable, str(script), "--lr", "0.1 x", "--api-key", "***", "TOKEN=***"]
    assert facts["caller"]["argv"] == expected
    assert facts["caller"]["command"].endswith("--lr '0.1 x' --api-key '***' 'TOKEN=***'")
    assert facts["caller"]["cwd"] == str(tmp_path)
    assert facts["caller"]["script"]["path"] == str(script)
    assert facts["python"]["executable"] == sys.executable
    assert facts["pending"] == ["git", "software", "machine", "packages", "data"]
    assert not facts["complete"]
    assert of_no_folder["caller"]["cwd"] is None and of_no_folder["git"] is None, "a working directory that is removed"
    assert fastest < 0.005
    assert not {"subprocess", "tempfile", "asyncio", "pandas", "IPython", "platform"} & {*modules}

    facts = run("-c", SCRIPT)[0]
    assert facts["caller"]["argv"][1:3] == ["-c", SCRIPT]
    assert "script" not in facts["caller"]


@pytest.mark.leaves("files")
def test_a_real_kernel_tells_the_executed_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    monkeypatch.setenv("JPY_SESSION_NAME", "tour.ipynb")
    (tmp_path / "tour.ipynb").write_text("{}")
    book = nbformat.v4.new_notebook()
    source = (
        "import json; from estimators.records.provenance import caller_facts; "
        'print(json.dumps(caller_facts()["caller"]))'
    )
    book.cells = [nbformat.v4.new_code_cell("a = 1"), nbformat.v4.new_code_cell(source)]
    client = nbclient.NotebookClient(book, timeout=120, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    facts = json.loads(book.cells[1].outputs[0]["text"])
    assert facts["kind"] == "notebook"
    assert facts["cell"] == source
    assert facts["notebook"] == str(tmp_path / "tour.ipynb")
    assert [cell for _, cell in facts["earlier_cells"]] == ["a = 1"]
