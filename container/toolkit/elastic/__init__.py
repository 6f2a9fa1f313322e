"""Run elastic Horovod on fleetfit's hosts: Horovod's own driver gets hosts and workers from the job's supervisor.

The supervisor (``estimators.supervisor.elastic``) decides the membership: which hosts are available, which workers are
started on them, and which hosts are excluded for how long. :mod:`container.toolkit.elastic.driver` is Horovod's
``ElasticDriver`` with its rendezvous, in a separate process beside the supervisor.
:mod:`container.toolkit.elastic.host` is a host's toolkit, which starts workers on request. The supervisor sends
messages (:mod:`container.contract.messages`) to both programs.

A worker's name is ``<host>.<slot>.<number>``. A name is never used twice, so that a new worker in the same slot gets a
new name. To Horovod, each worker is a host with one slot. Therefore the loss of one worker does not affect other
workers on the same host. The oldest remaining worker, which has the training's state, becomes rank 0.
"""
