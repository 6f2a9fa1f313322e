"""S3 on a folder of this machine: a folder in it is a bucket, a file in that an object.

Keys are keys: ``a`` beside ``a/b``, the marker ``in/``, ``a//b`` and ``../x`` are objects like any other, though they
cannot all be files (:mod:`keys`). ETags are MD5s, as on S3. What `boto3`, the AWS command line, the SDK of SageMaker
and `rclone` ask for is served, signed by either version of AWS's signatures; whatever else S3 has is refused by name.
"""
