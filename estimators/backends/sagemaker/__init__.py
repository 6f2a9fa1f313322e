"""Run jobs on Amazon SageMaker through boto3, for estimators with ``instance_type="ml.…"``.

In the calling process, before the job:

* :mod:`~estimators.backends.sagemaker.aws`: creates the AWS clients, finds the account and the region, and computes the
  environment variables of the supervisor.
* :mod:`~estimators.backends.sagemaker.sdk_config`, :mod:`~estimators.backends.sagemaker.discovery`: find the role,
  bucket and prefix in the same sources as the SageMaker SDK.
* :mod:`~estimators.backends.sagemaker.images`: chooses the image.
* :mod:`~estimators.backends.sagemaker.shipping`: checks which options an image supports, and adds our toolkit to the
  jobs of images that do not contain our toolkit.

In the supervisor, the process on this machine that follows the job:

* :mod:`~estimators.backends.sagemaker.packing`: packs and uploads the code.
* :mod:`~estimators.backends.sagemaker.backend`: creates, follows and stops the job.
* :mod:`~estimators.backends.sagemaker.logs`, :mod:`~estimators.backends.sagemaker.mirror`: convert CloudWatch's logs
  and DescribeTrainingJob's responses to the log lines and status of a local job.

:mod:`~estimators.client.adopting` creates records for jobs that were started without fleetfit.
"""
