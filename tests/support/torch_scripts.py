"""How scripts of the tests that use PyTorch begin."""

from __future__ import annotations

#: Scripts that begin so are forked from one process, which has imported all of it: optimizers need PyTorch's compiler.
BEGIN = """
import torch
import torch.distributed as dist
optim = torch.optim
"""
