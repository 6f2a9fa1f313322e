"""What of the script's API knows no framework: who reads what, in which order, and where ranks meet."""
