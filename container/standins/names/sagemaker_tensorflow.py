"""Replace ``sagemaker_tensorflow``, so that scripts can use ``PipeModeDataset``."""

from __future__ import annotations

from container.pipe_dataset import PipeModeDataset, PipeModeDatasetException

__all__ = ["PipeModeDataset", "PipeModeDatasetException"]
