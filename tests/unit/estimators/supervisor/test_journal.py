"""What the supervisor writes into a record."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from values import spec_of

from estimators.records.record import JobRecord
from estimators.supervisor.journal import Journal


def test_a_text_with_a_file_name_that_is_not_utf_8_can_be_written(tmp_path: Path) -> None:
    supervisor: Any = SimpleNamespace(
        loop=SimpleNamespace(call_soon=lambda call: None), rank_of=None, note=lambda *_: None
    )
    record = JobRecord.create("job-1", tmp_path)
    journal = Journal(supervisor, record, spec_of(None, hosts=1, output=str(tmp_path)), {}, mask=lambda text: text)
    text = os.fsdecode(b"not saved: /opt/ml/model/caf\xe9")
    journal.warn(text)
    journal.say("algo-1", text)
    journal.show_progress("algo-1", text)
    record.release()
    assert journal.own["warnings"] == ["not saved: /opt/ml/model/caf?"]
