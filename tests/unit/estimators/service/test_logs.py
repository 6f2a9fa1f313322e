"""What CloudWatch Logs' clients count on beside the order of events."""

from __future__ import annotations

from pathlib import Path

from container.contract.wire import Piece
from estimators.records import status as statuses
from estimators.records.logs import LogWriter
from estimators.records.record import JobRecord
from estimators.records.states import SecondaryStatus
from estimators.service.logs import GROUP, Logs
from estimators.service.records import Jobs


def test_events_of_two_hosts_in_the_same_moment_have_different_ids(tmp_path: Path) -> None:
    """``aws logs tail`` takes events with the same id and time for one."""
    record = JobRecord.create("job", tmp_path)
    request = {
        "TrainingJobName": "job",
        "AlgorithmSpecification": {"TrainingInputMode": "File"},
        "ResourceConfig": {"InstanceType": "local_process", "InstanceCount": 2},
    }
    record.write_request(request)
    record.release()
    record.write_status(statuses.transition(statuses.new_status(request, 1.0), SecondaryStatus.TRAINING, 2.0))
    writer = LogWriter(record)
    for host in ("algo-1", "algo-2"):
        for number in range(3):
            writer.write(Piece(host, None, b"line %d\n" % number), 5_000_000_000)
    writer.close()
    logs = Logs(Jobs(tmp_path, "us-east-1"))
    events = logs.filter_events({"logGroupName": GROUP, "logStreamNamePrefix": "job/"})["events"]
    assert len({event["eventId"] for event in events}) == len(events) == 6
    assert all(len(event["eventId"]) == 56 and event["eventId"].isdecimal() for event in events)
