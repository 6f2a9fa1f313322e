"""Run pytest as given; where at most five tests fail, run each once more by itself.

    python tests/support/rerun.py [ARGUMENT OF PYTEST …]

The exit code is 0 if each passes then, and all others have run. They are named behind ``FLAKY``: a test that fails
now and then is a defect of its own, and no longer a reason to lose the work that it was run for.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

#: More than so many have a cause in common, and none is run again.
MOST = 5
#: The first word of what runs one test again.
_ALONE = "--alone"


class Results:
    """A plugin of pytest that notes what was to run, what has, and how; also where other processes run it."""

    def __init__(self) -> None:
        self.collected: set[str] = set()
        self.ended: set[str] = set()
        self.failed: dict[str, None] = {}
        self.passed: set[str] = set()
        self.unread = False

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.collected.update(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: object, ids: Sequence[str]) -> None:
        self.collected.update(ids)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.unread = self.unread or report.failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Set-up and tear-down count too."""
        if report.failed:
            self.failed[report.nodeid] = None
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid)
        if report.when not in ("setup", "call"):  # the tear-down, or all that is known of one whose process died
            self.ended.add(report.nodeid)


def main(arguments: list[str]) -> int:
    """Run the tests and return the exit code."""
    results = Results()
    code = int(pytest.main(arguments, plugins=[results]))
    tests = list(results.failed)
    if code != pytest.ExitCode.TESTS_FAILED or results.unread or not 0 < len(tests) <= MOST:
        return code
    if missing := results.collected - results.ended:
        print(f"\n{len(missing)} did not run, {min(missing)} is one of them: nothing is run once more.", flush=True)
        return code
    print(f"\n{len(tests)} failed. Each is run once more, by itself.", flush=True)
    again = [test for test in tests if run([sys.executable, __file__, _ALONE, test]) != 0]
    for test in tests:
        print(f"{'FAILED TWICE' if test in again else 'FLAKY'} {test}", flush=True)
    return code if again else 0


def alone(test: str) -> int:
    """Run one test; return 0 if it passes, and is not skipped."""
    results = Results()
    code = int(pytest.main(["-m", "", test], plugins=[results]))  # it was chosen already
    return code or int(test not in results.passed)


def run(command: Sequence[str], **options: object) -> int:
    """Run a command and return its exit code; at Ctrl-C, wait until it has tidied up.

    Raises:
        KeyboardInterrupt: it has come to its end then.
    """
    interrupted = None
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, **options) as child:  # type: ignore[call-overload]
        while child.returncode is None:
            try:
                child.wait()
            except KeyboardInterrupt as error:  # the terminal has told it too
                interrupted = error
    if interrupted is not None:
        raise interrupted
    code: int = child.returncode
    return code


if __name__ == "__main__":
    del sys.path[0]  # this folder, which conftest.py puts at the end
    sys.exit(alone(sys.argv[2]) if sys.argv[1:2] == [_ALONE] else main(sys.argv[1:]))
