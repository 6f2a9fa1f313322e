"""Define the contract between the two sides of a job.

The contract consists of the file layout, the encoding of hyperparameters, strategies, memberships (the hosts of a
cluster), plans (the processes of each host), and the messages between processes.

The package consists of frozen dataclasses and pure functions, and imports only the standard library. It is the only
package that both ``estimators`` (the user's side) and ``container`` (a host's side) import.
"""
