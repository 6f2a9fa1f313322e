"""What a job will do on a fleet that comes and goes: simulated, by the deciders of the real supervisor."""
