"""Training jobs: the record on disk, the states, the supervisor process, and the handle that users hold."""
