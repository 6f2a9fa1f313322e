"""``instance_type="ssh"``: machines that ssh reaches."""
