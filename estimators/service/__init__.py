"""SageMaker's training API on one's own machine, in front of the local backends.

``fleetfit serve`` answers boto3, the aws command line and the official SageMaker SDK, unchanged, and runs their jobs
here. A request goes through these modules, each of which does one thing:

============================ =========================================================================================
:mod:`~.web`                 HTTP on loopback, by uvicorn
:mod:`~.signing`             is it signed with our keys (SigV4)
:mod:`~.protocol`            which service and operation, its parameters; and the answer's or the error's bytes
:mod:`~.models`              botocore's service models: validation of requests, shape of answers
:mod:`~.endpoint`            the table of operations
:mod:`~.training`            SageMaker's training jobs
:mod:`~.translation`         from a client's request to a job for a local backend, or why it cannot be
:mod:`~.queue`               starts jobs, so many at a time; finds them again after a restart
:mod:`~.streams`, ``logs``   CloudWatch Logs, out of the jobs' records
:mod:`~.metrics`             CloudWatch's metrics, out of the jobs' events
:mod:`~.identity`            what STS and IAM are asked
:mod:`~.storage`             the S3 server beside it
:mod:`~.settings`            keys, and the files that tell clients where we are
============================ =========================================================================================

Everything that must survive a restart is in ``$FLEETFIT_HOME``: the jobs' own records, and ``service/``.
"""
