"""Provide Linux process primitives and the event loops that the toolkit and the supervisor run on.

The toolkit prepares a host and starts its ranks. The supervisor owns a running job.

The package needs only the standard library. The toolkit and the supervisor share it on purpose: the guarantee that no
process of a job survives must be implemented once.
"""
