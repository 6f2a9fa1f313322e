"""Amazon SageMaker, through boto3: ``instance_type="ml.…"``.

Before a job, in the caller:

* :mod:`~estimators.backends.sagemaker.aws`: clients, account, region, and the environment of a supervisor.
* :mod:`~estimators.backends.sagemaker.sdk_config`, :mod:`~estimators.backends.sagemaker.discovery`: role, bucket and
  prefix, found as the SageMaker SDK finds them.
* :mod:`~estimators.backends.sagemaker.images`: the image.
* :mod:`~estimators.backends.sagemaker.shipping`: what an image cannot run, and our toolkit for images that lack it.

In the supervisor:

* :mod:`~estimators.backends.sagemaker.packing`: packs and uploads the code.
* :mod:`~estimators.backends.sagemaker.backend`: creates, follows and stops the job.
* :mod:`~estimators.backends.sagemaker.logs`, :mod:`~estimators.backends.sagemaker.mirror`: CloudWatch's logs, and
  DescribeTrainingJob's answer, as a local job has them.

:mod:`~estimators.client.adopting` makes records of jobs that others started.
"""
