"""Provide the parts of the training scripts' API that need no framework, such as sharding and rendezvous."""
