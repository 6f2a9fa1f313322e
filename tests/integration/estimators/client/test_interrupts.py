"""Interrupts are counted, wake the wait, and go back to what they were."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest


@pytest.fixture(autouse=True)
def default_handler() -> object:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_no_descriptor_is_left_open() -> None:
    program = """
import os
from estimators.client.interrupts import Interrupts
before = os.listdir("/proc/self/fd")
for _ in range(10):
    with Interrupts() as interrupts:
        interrupts.wait(0)
assert os.listdir("/proc/self/fd") == before
"""
    subprocess.run([sys.executable, "-c", program], check=True)
