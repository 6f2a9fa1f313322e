"""Hosts that are nodes of a Ray cluster: a placement group, and an actor on each that holds our toolkit's place."""
