"""Run hosts on machines that are reached by ssh: ``instance_type="ssh"``."""
