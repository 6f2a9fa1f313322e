"""The parts of the script's API that need no framework: sharding, order and rendezvous."""
