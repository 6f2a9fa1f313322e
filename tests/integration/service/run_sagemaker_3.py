"""The SageMaker SDK 3.x against an endpoint whose jobs are containers, by hand: its environment has a gigabyte.

::

    .venv/bin/python tests/integration/service/run_sagemaker_3.py

It needs a container engine and ``fleetfit-training`` (`fleetfit image build`), on which it builds an image with what
the SDK's MPI driver wants: paramiko and keys for sshd. It prints what the jobs print, and ends with 0 if every job did
what it should.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

import clients
from serving import Serving

HERE = Path(__file__).parent
IMAGE = "fleetfit-test-sdk3"
#: The keys are those of a test on this machine, and go with the image.
DOCKERFILE = """\
FROM fleetfit-training
COPY wheels /wheels
RUN /opt/fleetfit/bin/python -m pip install --quiet --no-index --find-links /wheels paramiko \\
 && ssh-keygen -A && mkdir -p -m 700 /root/.ssh && ssh-keygen -q -t rsa -N '' -f /root/.ssh/id_rsa \\
 && cp /root/.ssh/id_rsa.pub /root/.ssh/authorized_keys \\
 && printf 'Host algo-*\\n  StrictHostKeyChecking no\\n' > /root/.ssh/config
"""


def build(folder: Path) -> None:
    """Build the image."""
    import docker

    folder.mkdir()
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:"]
    subprocess.run([*pip, "--dest", folder / "wheels", "paramiko"], check=True)
    (folder / "Dockerfile").write_text(DOCKERFILE)
    docker.from_env().images.build(path=str(folder), tag=IMAGE, rm=True)


def run(served: Serving, python: Path, script: str) -> list[dict[str, object]]:
    """Run a script, and return what its ranks said."""
    done = subprocess.run(
        [python, HERE / "scripts" / script],
        env={**served.by_profile(), "COLUMNS": "300", "TERM": "dumb"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
    )
    logs = sorted(served.home.glob("jobs/*/hosts/*/logs/*/*.log"), key=lambda path: path.stat().st_mtime)
    text = "".join(path.read_text(errors="replace") for path in logs)
    print(done.stdout, text)
    if done.returncode:
        sys.exit(f"{script} ended with {done.returncode}; the endpoint said:\n{served.said()}")
    return [json.loads(match) for match in re.findall(r"said (\{.*\})", text)]


def main() -> None:
    """Run both."""
    python = clients.python_of("sagemaker-3")
    with tempfile.TemporaryDirectory(prefix="sdk3-") as folder:
        build(Path(folder) / "image")
        mapped = f"*/tensorflow-training:*={IMAGE}"
        served = Serving(Path(folder), "--backend", "docker", "--max-jobs", "2", "--image-map", mapped)
        try:
            (alone,) = run(served, python, "model_trainer.py")
            assert alone["arguments"] == ["--epochs", "3", "--name", "a b"], alone
            assert list(served.bucket.rglob("model.tar.gz")), "no model"
            ranks = [said for said in run(served, python, "model_trainer_mpi.py") if "rank" in said]
            # 3.27.0 passes mpirun the processes of one host, not of all of them.
            assert {rank["size"] for rank in ranks} <= {2, 4}, ranks
            print(f"both jobs did what they should; MPI had {ranks[0]['size']} ranks.")
        finally:
            served.close()


if __name__ == "__main__":
    main()
