"""Implement the user's interface: estimators, training jobs, plans, and their display in terminals and notebooks."""
