"""A backend whose hosts are network namespaces of this machine, with addresses and files of their own.

It is what ssh to other machines would be, without the ssh: ``docs/adding-a-backend.md`` walks through it.
"""
