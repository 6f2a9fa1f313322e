"""Linux process primitives and the event loop that both the toolkit and the supervisor run on.

Standard library only, and shared on purpose: the guarantee that nothing of a job survives must be one piece of code.
"""
