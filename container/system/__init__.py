"""Provide Linux process primitives and the event loop on which both the toolkit and the supervisor run.

The package needs the standard library only. It is shared on purpose: the guarantee that no process of a job survives
must be implemented once.
"""
