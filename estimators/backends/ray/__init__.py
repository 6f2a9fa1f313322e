"""Run hosts on the nodes of a Ray cluster. A placement group reserves the hosts' resources, and an actor for each host
holds them.
"""
