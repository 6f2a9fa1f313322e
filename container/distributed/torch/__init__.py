"""The script's API for PyTorch."""
