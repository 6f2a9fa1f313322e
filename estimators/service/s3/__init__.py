"""Serve a folder of this machine as S3: each folder in it is a bucket, and each file in a bucket is an object.

All keys are possible: ``a`` beside ``a/b``, ``in/`` (the marker of an empty folder), ``a//b`` and ``../x``. Objects
whose keys cannot be file names are stored in a private folder (:mod:`~estimators.service.s3.keys`). ETags are MD5s, as
on S3. The server supports the requests of `boto3`, the AWS command line, SageMaker's SDK and `rclone`. Requests may be
signed with Version 2 or 4 of AWS's signatures. Other features of S3 are refused with an error that names the feature.
"""
