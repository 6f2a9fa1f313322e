"""The container image that jobs on ``local`` and on SageMaker run in: ``fleetfit image``.

* :mod:`~estimators.images.wheelhouse`: the packages that go into it, as wheels of this machine.
* :mod:`~estimators.images.base`: a base image made without a registry.
* :mod:`~estimators.images.build`: the image itself.
"""
