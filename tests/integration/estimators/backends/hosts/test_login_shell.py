"""One line for every login shell."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from estimators.backends.hosts import login_shell

WORDS = [
    "a b",
    "it's",
    '"quoted"',
    "$HOME `id` $(id)",
    "back\\slash \\n",
    "two\nlines",
    "wow!",
    "!!",
    "*",
    "~",
    "",
    "é学",
    "a;b&c|d",
]


@pytest.mark.parametrize("shell", ["sh", "bash", "zsh", "fish", "tcsh"])
@pytest.mark.parametrize("script", ['printf "%s\\0" "$@"; cat', 'printf "%s\\0" "$@"\ncat # and nothing else\n'])
def test_words_and_input_reach_a_command_as_they_are_and_its_exit_status_comes_back(shell: str, script: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    for words in (["plain", "a b"], WORDS):
        line = login_shell.line(["sh", "-c", script, "sh", *words])
        done = subprocess.run([shell, "-c", line], input=b"\x00\xffinput", capture_output=True, check=True)
        assert done.stdout == b"".join(os.fsencode(word) + b"\0" for word in words) + b"\x00\xffinput"
    assert subprocess.run([shell, "-c", login_shell.line(["sh", "-c", "\nexit 7"])]).returncode == 7
