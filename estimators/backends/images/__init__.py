"""Build the container image for jobs on ``local`` and on SageMaker (``fleetfit image``).

* :mod:`~estimators.backends.images.base`: builds a base image without a registry.
* :mod:`~estimators.backends.images.build`: builds the image itself.
"""
