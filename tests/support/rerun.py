"""Run pytest as given; where at most five tests fail, run each once more by itself.

    python tests/support/rerun.py [ARGUMENT OF PYTEST …]

The exit code is 0 if each of them passes then. They are named behind ``FLAKY``: a test that fails now and then is a
defect of its own, and no longer a reason to lose the work that it was run for.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

#: More than so many have a cause in common, and none is run again.
MOST = 5


class Failures:
    """A plugin of pytest that notes what fails, in its set-up and its tear-down too."""

    def __init__(self) -> None:
        self.found: dict[str, None] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.found[report.nodeid] = None


def main(arguments: list[str]) -> int:
    """Run the tests and return the exit code."""
    failures = Failures()
    code = int(pytest.main(arguments, plugins=[failures]))
    tests = list(failures.found)
    if code != pytest.ExitCode.TESTS_FAILED or not 0 < len(tests) <= MOST:
        return code
    print(f"\n{len(tests)} failed. Each is run once more, by itself.", flush=True)
    again = [test for test in tests if not passes(test)]
    for test in tests:
        print(f"{'FAILED TWICE' if test in again else 'FLAKY'} {test}", flush=True)
    return code if again else 0


def passes(test: str) -> bool:
    """Run one test in a process of its own, and return whether it passes."""
    command = [sys.executable, "-m", "pytest", "-m", "", test]  # it was chosen already
    return subprocess.run(command, stdin=subprocess.DEVNULL).returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
