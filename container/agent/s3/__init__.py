"""Amazon S3 and servers like it, for the host agent: the only part of it that needs boto3."""
