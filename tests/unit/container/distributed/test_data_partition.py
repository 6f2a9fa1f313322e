"""Whose records a dataset of files has, if a channel's files differ between hosts."""

from __future__ import annotations

import json

import pytest

from container.contract import variables
from container.contract.errors import RefusedError
from container.distributed.core.data_partition import sharded_files
from container.distributed.tensorflow.parameter_servers import check_files
from container.distributed.torch.cluster import check_holds


def environ(hosts: int, **channels: str) -> dict[str, str]:
    config = {
        name: {"TrainingInputMode": "File", "S3DistributionType": distribution}
        for name, distribution in channels.items()
    }
    config["pipe"] = {"TrainingInputMode": "Pipe", "S3DistributionType": "ShardedByS3Key"}
    return {"SM_HOSTS": json.dumps(["algo-1", "algo-2"][:hosts]), "SM_INPUT_DATA_CONFIG": json.dumps(config)}


def test_files_that_differ_between_hosts() -> None:
    assert sharded_files(environ(2, train="ShardedByS3Key", all="FullyReplicated")) == "'train'"
    assert sharded_files(environ(2, train="FullyReplicated")) == ""
    assert sharded_files(environ(1, train="ShardedByS3Key")) == ""
    assert sharded_files({}) == ""


def test_a_loader_needs_the_same_records_on_every_rank() -> None:
    check_holds(None, "")
    check_holds("all", "'train'")
    with pytest.raises(RefusedError, match=r"channel 'train' of this job is ShardedByS3Key.*pass holds='all'"):
        check_holds(None, "'train'")
    with pytest.raises(RefusedError, match=r"loader\(holds='host'\)"):
        check_holds("host", "")


def test_workers_of_parameter_servers_on_one_machine_cannot_find_their_own_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(variables.SHARED_MACHINE, "1")
    check_files("all", 2, streams=False)
    check_files("host", 2, streams=True)
    check_files("host", 1, streams=False)
    check_files("rank", 2, streams=False)  # no channel has files that differ
    monkeypatch.setenv("SM_HOSTS", '["algo-1", "algo-2"]')
    monkeypatch.setenv("SM_INPUT_DATA_CONFIG", '{"train": {"S3DistributionType": "ShardedByS3Key"}}')
    with pytest.raises(RefusedError, match="all workers would read the files of algo-1"):
        check_files("host", 2, streams=False)
    monkeypatch.delenv(variables.SHARED_MACHINE)
    check_files("host", 2, streams=False)
