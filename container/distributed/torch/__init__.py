"""Implement the training scripts' API for PyTorch."""
