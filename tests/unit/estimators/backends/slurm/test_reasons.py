"""What Slurm says, in words, and what follows from it."""

from __future__ import annotations

import pytest

from estimators.backends.slurm.reasons import Loss, what_signalled, why_lost, why_over, why_pending

CANCELLED = "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-27T03:00:00 ***"
PREEMPTED = "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-27T03:00:00 DUE TO PREEMPTION ***"
LIMIT = "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-27T03:00:00 DUE TO TIME LIMIT ***"
FAILED = "srun: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-27T03:00:00 DUE TO NODE FAILURE ***"
ABORTED = "srun: Job step aborted: Waiting up to 7 seconds for job step to finish."
NOISE = "slurmstepd: error: plugin task/none lacks support for cpu binding"


def test_reasons_are_in_words_and_those_that_are_not_known_as_slurm_says_them() -> None:
    assert why_pending("Resources") == "it waits for nodes to become free (Resources)"
    assert why_pending("AssocGrpGRES") == "AssocGrpGRES"


@pytest.mark.parametrize(
    ("state", "reason", "text"),
    [
        ("CANCELLED", "None", "the allocation was cancelled (scancel)"),
        ("BOOT_FAIL", "NodeDown", "its node could not be booted (NodeDown)"),
        ("FAILED", "NonZeroExitCode", "failed (NonZeroExitCode)"),
        ("GONE", "", "gone"),
        ("", "", "the reason is unknown"),
    ],
)
def test_an_end_before_the_job_ran_is_in_words(state: str, reason: str, text: str) -> None:
    assert why_over(state, reason) == text


@pytest.mark.parametrize(
    ("said", "loss"),
    [
        ([], Loss("it ended", silent=True)),
        ([NOISE, ABORTED], Loss("it ended", silent=True)),
        ([NOISE, "srun: error: n1: refused"], Loss("it ended (srun: error: n1: refused)", silent=True)),
        ([ABORTED, CANCELLED], Loss("the allocation was cancelled (scancel)")),
        ([PREEMPTED], Loss("Slurm has given its node to another job", taken=True)),
        ([FAILED], Loss("its node has failed", taken=True)),
    ],
)
def test_a_host_is_lost_for_what_its_srun_has_said(said: list[str], loss: Loss) -> None:
    assert why_lost(said, "it ended") == loss


def test_an_interpreter_that_will_not_do_is_named() -> None:
    for line in ("there is no /no/python on n1", "/usr/bin/python3 has no fleetfit"):
        reason, taken, silent = why_lost([line, "srun: error: n1: task 0: Exited with exit code 91"], "it ended")
        assert reason.startswith(f"{line}. Install the same version of fleetfit") and not taken and not silent


@pytest.mark.parametrize(
    ("state", "left", "said", "meant"),
    [
        ("RUNNING", 20.0, [], 19.0),
        ("COMPLETING", 20.0, [PREEMPTED], 19.0),
        ("COMPLETING", 5.0, [LIMIT], 4.0),
        ("RUNNING", None, [], 29.0),
        ("RUNNING", 0.5, [], 0.0),
        ("RUNNING", 20.0, [CANCELLED], 19.0),  # it is only announced
        ("", None, [CANCELLED], 29.0),  # Slurm does not answer
        ("CANCELLED", 5.0, [CANCELLED], Loss("the allocation was cancelled (scancel)")),
        ("NODE_FAIL", 5.0, [FAILED], Loss("its node has failed", taken=True)),
    ],
)
def test_a_signal_is_a_notice_unless_the_allocation_is_being_ended(
    state: str, left: float | None, said: list[str], meant: Loss | float
) -> None:
    assert what_signalled(state, left, said) == meant
