"""Feeds a host's channels in Pipe mode: ``agent pipe``, one process for each host, outside the training process.

For each reader of each channel there is one FIFO for each epoch, made before it can be opened. A reader that opens an
epoch gets the whole of it; one that leaves early ends that epoch and nothing else. What cannot be read ends the agent,
and with it the job.
"""
