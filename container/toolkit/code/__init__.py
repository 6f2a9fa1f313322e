"""The user's code on a host: brought, unpacked, and given what its ``requirements.txt`` asks for."""
