"""Provide modules that SageMaker's sample scripts import, for machines and images without SageMaker's packages.

Python first searches for ``sagemaker_tensorflow``, ``sagemaker_containers`` and ``sagemaker_training`` as usual. If a
package is not found, the hook in the script's interpreter (``hook/sitecustomize.py``) provides the module of this
folder instead. The modules contain only what scripts use: ``PipeModeDataset``, ``training_env()`` and
``environment.Environment()``.
"""
