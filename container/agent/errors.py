"""What the agent's commands raise."""

from __future__ import annotations


class AgentError(Exception):
    """Something that the job needs cannot be done; the message is one line that names it and the remedy."""
