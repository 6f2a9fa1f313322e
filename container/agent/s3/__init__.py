"""Access Amazon S3 and compatible servers for the host agent. In the agent, only this package imports boto3."""
