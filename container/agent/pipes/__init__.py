"""Feed a host's channels in Pipe mode (``agent pipe``). Each host has one such process, outside the training process.

Each reader of a channel gets one FIFO for each epoch. The FIFO is created before the reader can open it. A reader that
opens an epoch's FIFO gets the whole epoch. A reader that closes the FIFO early ends only that epoch. If data cannot be
read, the agent exits with an error, and the job fails.
"""
