"""Fails."""

raise ValueError("there is no column 'price' in the data")
