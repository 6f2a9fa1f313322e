"""A script of horovodrun's: it says who is there, and trains nothing."""

import horovod.tensorflow as hvd

hvd.init()
print(f"worker {hvd.rank()} of {hvd.size()}", flush=True)
