"""The Checkpointer on arrays: what users call, and clusters."""

from __future__ import annotations

import subprocess
import sys


def test_importing_is_light() -> None:
    code = (
        "import sys, container.checkpoint as c; assert 'numpy' not in sys.modules; assert 'Checkpointer' in dir(c)\n"
        "for name in c.__all__: assert getattr(c, name).__name__ == name\n"
        "assert 'tensorflow' not in sys.modules and 'keras' not in sys.modules\n"
        "try: c.Chekpointer\n"
        "except AttributeError: print('done')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "done\n"
