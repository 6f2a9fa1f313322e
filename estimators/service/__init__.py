"""Provide SageMaker's training API on this machine. The jobs run on the local backends.

``fleetfit serve`` answers the requests of boto3, the AWS command line and the official SageMaker SDK, and runs the
requested jobs on this machine. These clients need no changes. The modules and their tasks:

============================ =========================================================================================
:mod:`~.web`                 serves HTTP on loopback, with uvicorn
:mod:`~.signing`             verifies that the request is signed with the endpoint's keys (SigV4)
:mod:`~.protocol`            reads the service, the operation and its parameters; writes the response or the error
:mod:`~.models`              validates requests, and converts results to responses, with botocore's service models
:mod:`~.endpoint`            finds the operation of a request in a table, and calls the operation
:mod:`~.training`            has the operations on SageMaker's training jobs
:mod:`~.translation`         converts a client's request to a job for a local backend, or refuses the request
:mod:`~.queue`               starts a limited number of jobs at once; finds the jobs again after a restart
:mod:`~.streams`, ``logs``   provide CloudWatch Logs from the jobs' records
:mod:`~.metrics`             provides CloudWatch's metrics from the jobs' events
:mod:`~.identity`            has the operations of STS and IAM
:mod:`~.storage`             runs the S3 server beside the endpoint
:mod:`~.settings`            stores the keys, and has the paths of the endpoint's files
:mod:`~.profile`             writes the files from which clients read the endpoint's address
============================ =========================================================================================

Everything that must survive a restart is in ``$FLEETFIT_HOME``: the jobs' records, and the folder ``service/``.
"""
