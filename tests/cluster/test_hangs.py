"""A job without progress ends, and says where each rank waits; one that only takes its time goes on."""

from __future__ import annotations

import clusters
import pytest
import shapes


@shapes.every
def test_a_silent_job_says_where_each_rank_is(shape: shapes.Shape, make: clusters.Make) -> None:
    job = make.start(
        """
        import time
        import aid

        def wait_for_ever():
            time.sleep(300)

        aid.mark(f"ready-{aid.RANK}")
        wait_for_ever()
        """,
        ready=shape.size,
        hang_timeout=3,
        **shape.settings,
    )
    snapshot = clusters.Snapshot(job)
    clusters.await_terminal(job, 60)
    assert job.status == "Failed" and job.failure is not None
    assert "no rank has printed or reported anything for 3 s" in job.failure.message
    where = str(job.failure.log_tail).splitlines()[1:]
    for rank in range(shape.size):
        [line] = [line for line in where if line.startswith(f"{shape.place(rank)}: ")]
        assert "in wait_for_ever: time.sleep(300)" in line
        assert any("most recent call first" in text for text in clusters.printed(job, rank))
    assert len(where) == shape.size, where  # servers wait by nature
    assert snapshot.left() == []


def test_one_rank_that_says_something_is_progress(make: clusters.Make) -> None:
    job = make.run(
        """
        import time
        import aid
        for step in range(12):
            if aid.RANK == 1:
                print(step, flush=True)
            time.sleep(0.5)
        """,
        hang_timeout=3,
        **shapes.NONE.settings,
    )
    assert job.status == "Completed"


@pytest.mark.parametrize("limit", [0, -1, "soon"])
def test_a_limit_that_makes_no_sense_is_refused(limit: object, make: clusters.Make) -> None:
    with pytest.raises(ValueError, match="hang_timeout must be a number of seconds above 0"):
        make("print('never')", hang_timeout=limit)
