"""What is used at once imports nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from synthetic import LOCAL_REQUEST, result

HEAVY = {
    "IPython", "asyncio", "boto3", "botocore", "docker", "horovod", "jinja2", "keras", "matplotlib", "mpi4py", "numpy",
    "pandas", "rich", "sagemaker", "tensorflow", "tf_keras",
}  # fmt: skip


@pytest.mark.parametrize(
    ("program", "heavy"),
    [
        ("from estimators import TensorFlow, MPI", HEAVY),
        (
            "from estimators import TensorFlow; TensorFlow(entry_point='train.py', source_dir=FOLDER).plan(check=True)",
            HEAVY,
        ),
        ("from estimators.cli.main import main; main(['--help'])", HEAVY | {"estimators.job.request"}),
        ("from estimators import Result; assert round(Result.load(FOLDER).samples_per_second) == 3200", HEAVY),
        ("from estimators.job import validation; validation.check_request(REQUEST)", HEAVY),
        ("from estimators.cli import doctor; doctor.diagnose()", HEAVY - {"asyncio", "boto3", "botocore"}),
    ],
)
def test_importing_is_light(program: str, heavy: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from estimators.job import service_model

    monkeypatch.setenv("FLEETFIT_CACHE", str(tmp_path / "cache"))
    service_model.load_shapes.cache_clear()
    service_model.load_shapes()  # from now on the model is in the cache
    service_model.load_shapes.cache_clear()
    result().save(tmp_path / "result.json")
    (tmp_path / "train.py").write_text("")
    given = f"import json, sys\nFOLDER = {str(tmp_path)!r}\nREQUEST = json.loads({json.dumps(LOCAL_REQUEST)!r})\n"
    said = "\nprint(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", given + program + said], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert heavy & {*json.loads(done.stderr)} == set()
