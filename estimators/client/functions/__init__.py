"""Functions as entry points: how one is packed, what runs it on a host, and how its value comes back."""
