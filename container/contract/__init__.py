"""What the two sides of a job share: file layout, hyperparameter codec, strategies, memberships, plans, wire lines.

Everything here is pure: frozen dataclasses and functions over them, standard library only. ``estimators`` (the user's
side) and ``container`` (a host's side) meet in this package and nowhere else.
"""
