"""Modules that scripts of SageMaker's samples import, for machines and images that have not SageMaker's packages.

``sagemaker_tensorflow``, ``sagemaker_containers`` and ``sagemaker_training`` are looked up as ever; only where that
finds nothing, the hook in the script's interpreter (``hook/sitecustomize.py``) gives these in their place. They have
what scripts use: ``PipeModeDataset``, ``training_env()`` and ``environment.Environment()``.
"""
