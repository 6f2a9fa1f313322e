"""Import packages once for all ranks of a host: read the imports of a script, and fork ranks from the importer."""
