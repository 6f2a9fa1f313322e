"""What is refused of a function before anything starts, and needs no job to be seen."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from estimators import ConfigurationError
from estimators.client.functions import packing

HERE = f"{sys.version_info[0]}{sys.version_info[1]}"
AWS = "763104351884.dkr.ecr.us-east-1.amazonaws.com/tensorflow-training:2.16-cpu"


def takes(rate: float = 0.1) -> None:
    pass


def takes_all(**others: Any) -> None:
    pass


def test_what_is_tuned_has_to_be_a_parameter() -> None:
    packing.describe(takes, hyperparameters={}, channels=(), later=["rate"])
    packing.describe(takes_all, hyperparameters={}, channels=(), later=["anything"])
    with pytest.raises(ConfigurationError, match=r"hyperparameter of takes\(\) 'rat'. Did you mean 'rate'"):
        packing.describe(takes, hyperparameters={}, channels=(), later=["rat"])


@pytest.mark.parametrize("image", [None, "mine:py27", f"{AWS}-py{HERE}", f"{AWS}-py{HERE}-ubuntu20.04-sagemaker"])
def test_an_image_with_this_python_or_an_unknown_one_is_taken(image: str | None) -> None:
    packing.check_image(takes, image)


@pytest.mark.parametrize("image", [f"{AWS}-py27", f"{AWS}-py27-ubuntu20.04-sagemaker"])
def test_an_image_with_another_python_is_refused(image: str) -> None:
    with pytest.raises(ConfigurationError, match=r"takes\(\) is packed by Python .* has Python 2\.7"):
        packing.check_image(takes, image)
