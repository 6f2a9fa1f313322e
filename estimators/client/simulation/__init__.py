"""Simulate jobs on spot hosts, which a market may interrupt, to predict their duration and cost.

The simulation uses the functions with which the real supervisor makes its decisions.
"""
