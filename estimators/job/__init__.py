"""Represent a job as values: its request, settings, inputs, policies and errors. Pure.

Every other package may import this package.
"""
