"""Replace SageMaker's modules. Each module in this folder replaces the package of the same name when the folder is in
``sys.path``.
"""
