"""An S3 server for a folder of this machine: each folder in it is a bucket, and each file in a bucket is an object.

All keys are possible: ``a`` beside ``a/b``, the marker ``in/``, ``a//b`` and ``../x``. Keys that cannot be file names
are stored in another way (:mod:`keys`). ETags are MD5s, as on S3. The server supports the requests of `boto3`, the AWS
command line, SageMaker's SDK and `rclone`. Requests may be signed with either version of AWS's signatures. Other
features of S3 are refused with an error that names the feature.
"""
