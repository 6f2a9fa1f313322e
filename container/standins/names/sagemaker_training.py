"""Replace ``sagemaker_training``, so that scripts can use its ``environment``."""

from __future__ import annotations

import sys

from container.standins import environment

__path__: list[str] = []
sys.modules[f"{__name__}.environment"] = environment

__all__ = ["environment"]
