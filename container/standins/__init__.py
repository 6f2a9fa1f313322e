"""Provide modules that SageMaker's sample scripts import, for machines and images without SageMaker's packages.

Python first looks for ``sagemaker_tensorflow``, ``sagemaker_containers`` and ``sagemaker_training`` as usual. Only if
they are not found, the hook in the script's interpreter (``hook/sitecustomize.py``) provides these modules. They have
the parts that scripts use: ``PipeModeDataset``, ``training_env()`` and ``environment.Environment()``.
"""
