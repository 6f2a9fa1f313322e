"""SageMaker's training API on this machine, in front of the local backends.

``fleetfit serve`` answers boto3, the aws command line and the official SageMaker SDK, all without changes, and runs
their jobs here. A request is processed by these modules, each of which has one task:

============================ =========================================================================================
:mod:`~.web`                 serves HTTP on loopback, with uvicorn
:mod:`~.signing`             verifies that the request is signed with the endpoint's keys (SigV4)
:mod:`~.protocol`            reads the service, the operation and its parameters; writes the answer or the error
:mod:`~.models`              has botocore's service models: validates requests, and gives answers their form
:mod:`~.endpoint`            has the table of operations
:mod:`~.training`            has the operations on SageMaker's training jobs
:mod:`~.translation`         converts a client's request to a job for a local backend, or refuses it with the reason
:mod:`~.queue`               starts a limited number of jobs at once; finds the jobs again after a restart
:mod:`~.streams`, ``logs``   provide CloudWatch Logs from the jobs' records
:mod:`~.metrics`             provides CloudWatch's metrics from the jobs' events
:mod:`~.identity`            has the operations of STS and IAM
:mod:`~.storage`             runs the S3 server beside the endpoint
:mod:`~.settings`            has the keys, and the files from which clients learn the endpoint's address
============================ =========================================================================================

Everything that must survive a restart is in ``$FLEETFIT_HOME``: the jobs' records, and the folder ``service/``.
"""
