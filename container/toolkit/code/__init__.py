"""Prepare the user's code on a host: download and unpack it, and install the packages in its ``requirements.txt``."""
