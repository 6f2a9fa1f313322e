"""Prepare the user's code on a host: download, unpack, and install the packages in ``requirements.txt``."""
