"""Installations to try provisioning on, without TensorFlow where its name is enough."""

from __future__ import annotations

from installations import installation, make_wheel, real_venv

__all__ = ["installation", "make_wheel", "real_venv"]
