"""Connect ``mpirun`` to the other hosts through their toolkits, without ssh."""
