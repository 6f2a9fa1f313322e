"""Provide modules with the names of SageMaker's packages.

The hook in the script's interpreter imports these modules if the packages are not installed. In processes that
multiprocessing spawns, this folder is in ``sys.path``.
"""
