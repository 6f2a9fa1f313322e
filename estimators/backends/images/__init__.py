"""The container image that jobs on ``local`` and on SageMaker run in: ``fleetfit image``.

* :mod:`~estimators.backends.images.base`: a base image made without a registry.
* :mod:`~estimators.backends.images.build`: the image itself.
"""
