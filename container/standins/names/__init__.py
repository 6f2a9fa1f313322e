"""Each module in this folder, which may be one of ``sys.path``, stands for one of SageMaker's, with its submodules."""
