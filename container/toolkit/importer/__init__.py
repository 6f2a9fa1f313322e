"""Import packages once for all ranks of a host: an importer process executes the imports and forks the ranks."""
