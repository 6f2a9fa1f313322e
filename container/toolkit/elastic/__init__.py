"""Elastic Horovod on fleetfit's hosts: Horovod's own driver, told of hosts and workers by the job's supervisor.

The supervisor (``estimators.supervisor.elastic``) owns the membership: which hosts there are, which workers have been
started on them, who is excluded for how long. :mod:`container.toolkit.elastic.driver` is Horovod's ``ElasticDriver``
with its rendezvous, in a process of its own beside the supervisor; :mod:`container.toolkit.elastic.host` is a host's
toolkit, which starts workers when it is told to. Both are told by :mod:`container.contract.messages`.

A worker is called ``<host>.<slot>.<number>``, a name that is never used twice: what failed may come back, but as
somebody else. To Horovod each worker is a host with one slot. So the loss of one leaves its neighbours on the host
alone, and the oldest worker that is left, which has the state, becomes rank 0.
"""
