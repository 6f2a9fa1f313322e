"""``instance_type="ec2.<type>"``: machines of EC2, on demand and of its spot market, for one job."""
