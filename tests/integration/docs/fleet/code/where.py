import os
import socket

rank, size = (os.environ.get(f"OMPI_COMM_WORLD_{name}", "?") for name in ("RANK", "SIZE"))
print(f"rank {rank} of {size} on {socket.gethostname()}", flush=True)
