"""Represent a job as values: its request, settings, inputs, policies and errors.

Every other package of ``estimators`` may import this package.
"""
