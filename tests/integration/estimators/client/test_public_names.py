"""The public names are listed once, are there, and cost nothing before they are used."""

from __future__ import annotations

import subprocess
import sys


def test_importing_is_light() -> None:
    program = (
        "import sys\n"
        "from estimators import TensorFlow, MPI\n"
        "heavy = ('asyncio', 'pandas', 'numpy', 'rich', 'jinja2', 'boto3', 'botocore', 'tensorflow', "
        "'sagemaker', 'IPython')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out == "[]\n"
