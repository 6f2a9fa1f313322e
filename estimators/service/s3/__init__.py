"""An S3 server for a folder of this machine: each folder in it is a bucket, each file in a bucket an object.

All keys are possible: ``a`` beside ``a/b``, the marker ``in/``, ``a//b`` and ``../x``, although not all of them can be
file names (:mod:`keys`). ETags are MD5s, as on S3. The server supports the requests of `boto3`, the AWS command line,
SageMaker's SDK and `rclone`, signed with either version of AWS's signatures. Other features of S3 are refused by name.
"""
