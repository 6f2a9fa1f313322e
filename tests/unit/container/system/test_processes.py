"""Processes that are left alone."""

from __future__ import annotations

import os

import pytest

from container.system import processes


def test_a_tree_without_a_root_is_refused() -> None:
    """0 is the parent of all processes."""
    with open(os.pidfd_open(os.getpid())) as process, pytest.raises(ValueError, match="0"):
        processes.end_tree(process.fileno(), 0)
