"""The hosts' trees, as the agent finds them."""

from __future__ import annotations

from container.contract.environment import read_json_file
from container.contract.layout import MLTree


def host_name(tree: MLTree, index: int) -> str:
    """The host's own name, as its configuration says it; without one, its place in the order is its name."""
    try:
        name = read_json_file(tree.resource_config_file, {}).get("current_host")
    except (OSError, ValueError, AttributeError):
        name = None
    return str(name or f"algo-{index + 1}")
