"""Replace SageMaker's modules: each module in this folder, which may be in ``sys.path``, replaces a module."""
