"""Job names are the SDK's, and never the same twice."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from estimators.job import naming, validation


def test_names_are_a_base_and_the_time() -> None:
    assert re.fullmatch(r"base-\d{4}-\d\d-\d\d-\d\d-\d\d-\d\d-\d{3}", naming.job_name("base"))


def test_names_made_at_once_differ() -> None:
    with ThreadPoolExecutor(8) as pool:
        names = list(pool.map(lambda _: naming.job_name("b"), range(2000)))
    assert len(set(names)) == 2000


def test_long_bases_are_cut_to_what_sagemaker_takes() -> None:
    name = naming.job_name("x" * 100)
    assert len(name) == naming.MAX_LENGTH
    assert validation.job_name_problem(name) is None
    assert naming.base_of_name(name) == "x" * 39


@pytest.mark.parametrize("base", ["ps-cifar10-tf", "a", "x-2026"])
def test_the_base_is_found_again(base: str) -> None:
    assert naming.base_of_name(naming.job_name(base)) == base
    assert naming.base_of_name(base) == base


@pytest.mark.parametrize(
    ("image", "base"),
    [
        ("763104351884.dkr.ecr.us-west-2.amazonaws.com/tensorflow-training:2.11-cpu-py39", "tensorflow-training"),
        ("custom_image:latest", "custom-image"),
        ("localhost:5000/a/b@sha256:abc", "b"),
        ("__", "training-job"),
    ],
)
def test_images_give_bases(image: str, base: str) -> None:
    assert naming.base_of_image(image) == base
    assert validation.job_name_problem(naming.job_name(base)) is None
