"""What scripts import is light."""

from __future__ import annotations

import subprocess
import sys


def test_importing_the_scripts_modules_imports_no_framework() -> None:
    code = (
        "import sys, container.checkpoint as c; from container import distributed\n"
        "assert not {'numpy', 'tensorflow'} & sys.modules.keys(); assert 'Checkpointer' in dir(c)\n"
        "for name in c.__all__: assert getattr(c, name).__name__ == name\n"
        "assert 'tensorflow' not in sys.modules and 'keras' not in sys.modules\n"
        "try: c.Chekpointer\n"
        "except AttributeError: print('done')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "done\n"
