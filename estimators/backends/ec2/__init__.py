"""Run one job on EC2 instances with on-demand or spot capacity: ``instance_type="ec2.<type>"``."""
