"""How ``mpirun`` reaches the other hosts: through their toolkits, without ssh."""
