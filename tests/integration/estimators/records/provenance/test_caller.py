"""The caller's share: command lines, notebook cells, seeds, variables."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


def run(tmp_path: Path, text: str, *arguments: str, argv: list[str] | None = None) -> dict:
    """Run a script that prints its facts as JSON."""
    script = tmp_path / "start.py"
    script.write_text("import json\nfrom estimators.records.provenance import caller_facts\n" + text)
    command = argv if argv is not None else [sys.executable, str(script)]
    done = subprocess.run([*command, *arguments], capture_output=True, check=True, cwd=tmp_path, timeout=60)
    return json.loads(done.stdout)


def test_a_script_is_known_by_its_whole_command_line(tmp_path: Path) -> None:
    facts = run(tmp_path, "print(json.dumps(caller_facts()))", "--lr", "0.1 x", "--api-key", "hidden", "TOKEN=hidden")
    script = str(tmp_path / "start.py")
    assert facts["caller"]["kind"] == "command"
    expected = [sys.executable, script, "--lr", "0.1 x", "--api-key", "***", "TOKEN=***"]
    assert facts["caller"]["argv"] == expected
    assert facts["caller"]["command"].endswith("--lr '0.1 x' --api-key '***' 'TOKEN=***'")
    assert facts["caller"]["cwd"] == str(tmp_path)
    assert facts["caller"]["script"]["path"] == script
    assert facts["python"]["executable"] == sys.executable
    assert facts["pending"] == ["git", "software", "machine", "packages", "data"]
    assert not facts["complete"]


def test_python_dash_c_has_no_script(tmp_path: Path) -> None:
    code = "import json\nfrom estimators.records.provenance import caller_facts\nprint(json.dumps(caller_facts()))"
    facts = run(tmp_path, "", argv=[sys.executable, "-c", code])
    assert facts["caller"]["argv"][1:] == ["-c", code]
    assert "script" not in facts["caller"]


def test_it_takes_less_than_five_milliseconds_and_starts_nothing(tmp_path: Path) -> None:
    text = """
import sys, time
times = []
for _ in range(5):
    begin = time.perf_counter()
    caller_facts(hyperparameters={"seed": 1})
    times.append(time.perf_counter() - begin)
print(json.dumps({"fastest": min(times), "modules": sorted(sys.modules)}))
"""
    seen = run(tmp_path, text)
    assert seen["fastest"] < 0.005
    assert not {"subprocess", "tempfile", "asyncio", "pandas", "IPython", "platform"} & set(seen["modules"])


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


def test_a_removed_working_directory_is_no_error(tmp_path: Path) -> None:
    text = "import os\nos.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')\nprint(json.dumps(caller_facts()))"
    facts = run(tmp_path, text)
    assert facts["caller"]["cwd"] is None
    assert facts["git"] is None
