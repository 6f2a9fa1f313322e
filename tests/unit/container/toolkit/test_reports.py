"""From how a process ended to what users read."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from container.contract.failures import Cause, Failure
from container.contract.hints import Situation
from container.contract.membership import Membership
from container.contract.plan import HostPlan, Plan, ProcessPlan, Role
from container.toolkit import reports
from container.toolkit.process_group import ClusterProcess

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\nValueError: no data\n'


def member(printed: str = "", **values: Any) -> ClusterProcess:
    one = ClusterProcess(name="rank 3", role=Role.RANK, rank=3, ended=True, pid=7, **values)
    one.stream = SimpleNamespace(tail=printed.encode())  # type: ignore[assignment]
    return one


def exception(text: str = TRACEBACK, message: str = "no data") -> dict[str, Any]:
    return {"pid": 7, "type": "ValueError", "message": message, "traceback": text}


def test_an_exception_is_the_headline_and_its_traceback_the_detail() -> None:
    failure = reports.of_member(member("noise\n" + TRACEBACK, exit_code=1, exception=exception()), "algo-2")
    assert failure.summary() == "algo-2, rank 3: ValueError: no data (exited with code 1)"
    assert (failure.rank, failure.exit_code, failure.signal, failure.host) == (3, 1, None, "algo-2")
    assert failure.traceback is not None and failure.traceback.endswith("ValueError: no data\n")
    assert failure.log_tail is None
    assert failure.cause is Cause.PROCESS


#: As PyTorch 2.13 says it; frames beside its own are left out.
GLOO = """Traceback (most recent call last):
  File "train.py", line 8, in <module>
  File "/env/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83, in wrapper
  File "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 4026, in broadcast_object_list
  File "/env/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83, in wrapper
  File "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3151, in broadcast
RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 2000ms for recv \
operation to complete
"""
BARRIER = """Traceback (most recent call last):
  File "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 5435, in monitored_barrier
RuntimeError: [Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 2000 ms
"""
NCCL = """[rank1]:[E626 06:24:44.903881913 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation \
timeout: WorkNCCL(SeqNum=808, OpType=ALLREDUCE, NumelIn=9801523, NumelOut=9801523, Timeout(ms)=600000) ran for 600020 \
milliseconds before timing out.
[rank1]:[E626 06:24:44.906457629 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 1] Exception (either \
an error or timeout) detected by watchdog at work: 808, last enqueued NCCL work: 811, last completed NCCL work: 807.
"""


@pytest.mark.parametrize(
    ("text", "raised", "words"),
    [
        (GLOO, True, "broadcast_object_list timed out after 2 s: another rank took no part in it"),
        (BARRIER, True, "monitored_barrier timed out: ranks 1, 3 did not reach it"),
        (NCCL, False, "NCCL's collective 808, ALLREDUCE, timed out after 600 s"),
        ("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=BROADCAST, Timeout(ms)=1800000) ran "
         "for 1802212 milliseconds before timing out.", False,
         "NCCL's collective 9, BROADCAST, timed out after 1800 s"),
    ],
)  # fmt: skip
def test_a_collective_that_timed_out_is_named(text: str, raised: bool, words: str) -> None:
    ended: dict[str, Any] = {"exit_code": 1, "exception": exception(text)} if raised else {"signal": signal.SIGABRT}
    one = member(text, **ended)
    failure = reports.of_member(one, "algo-2")
    assert failure.message.startswith(f"{words} (") and failure.summary().startswith("algo-2, rank 3: ")
    assert failure.hints[0].startswith("another rank makes other calls") and "set hang_timeout=" in failure.hints[0]
    assert not reports.is_consequence(one)


@pytest.mark.parametrize(
    ("message", "headline"),
    [
        ("in user code:\n\n    File x\n\n    ValueError: the shapes differ", "ValueError: the shapes differ"),
        (
            "Exception encountered when calling Dense.call().\n\n\x1b[1mInput 0 does not fit\x1b[0m\n\nArguments: x",
            "ValueError: Input 0 does not fit",
        ),
        (
            "Exception encountered when calling layer 'mine' (type Mine).\n\nin user code:\n\n    File x, line 3\n\n"
            "    ValueError: my real cause\n\n\nCall arguments received by layer 'mine':\n  • x=tf.Tensor(shape=(3,))",
            "ValueError: my real cause",
        ),
        ("in user code:\n\n    File x, line 3\n\n    something else", "ValueError: in user code:"),
    ],
)
def test_the_headline_of_keras_is_the_cause(message: str, headline: str) -> None:
    text = TRACEBACK.replace("ValueError: no data", f"ValueError: {message}")
    found = reports.of_member(member(text, exit_code=1), "algo-1").message
    assert found == f"{headline} (exited with code 1)"


@pytest.mark.parametrize("kind", ["ValueError", "RuntimeError"])  # PyTorch cannot make every exception again
def test_the_headline_of_a_data_loader_is_the_exception_of_its_worker(kind: str) -> None:
    message = (
        "Caught ValueError in DataLoader worker process 1.\nOriginal Traceback (most recent call last):\n"
        '  File "dataloader.py", line 3, in fetch\n    return self.dataset[index]\nValueError: record 17 is damaged'
    )
    text = TRACEBACK.replace("ValueError: no data", f"{kind}: {message}")
    reported = exception(text, message) | {"type": kind}
    found = reports.of_member(member(text, exit_code=1, exception=reported), "algo-1").message
    assert found == "ValueError: record 17 is damaged (exited with code 1)"


def test_what_times_out_apart_from_collectives_keeps_its_words() -> None:
    text = TRACEBACK.replace("no data", "Timed out waiting 2000ms for recv operation to complete")
    failure = reports.of_member(member(text, exit_code=1, exception=exception(text)), "algo-2")
    assert failure.message.startswith("ValueError: Timed out waiting") and failure.hints == ()


def test_the_headline_of_a_message_of_several_lines_is_its_first() -> None:
    """TensorFlow's go on for pages; their last line explains nothing."""
    kind = "tensorflow.python.framework.errors_impl.UnavailableError"
    message = "Graph execution error:\n\n  node-3: damaged\n\nRestart your program to reset.\n\t [[node]]"
    text = (
        f'{TRACEBACK}\nDuring handling …\n\nTraceback (most recent call last):\n  File "train.py"\n{kind}: {message}\n'
    )
    expected = f"{kind}: Graph execution error: (exited with code 1)"
    reported = exception(text, message) | {"type": kind}
    assert reports.of_member(member(text, exit_code=1, exception=reported), "algo-1").message == expected
    assert reports.of_member(member(text, exit_code=1), "algo-1").message == expected


#: What TensorFlow's rank 0 raises when others do not answer any more.
UNHEALTHY = """UnavailableError: The following tasks are unhealthy (stopped sending heartbeats):
/job:worker/replica:0/task:1
/job:worker/replica:0/task:3
The tasks have crashed. Check the task logs for an earlier error. RPC: /task:2
"""


@pytest.mark.parametrize(("strategy", "hinted"), [("collective_all_reduce", True), ("parameter_server", False)])
def test_who_is_lost_and_not_who_says_it(strategy: str, hinted: bool) -> None:
    ranks = [
        ProcessPlan(name=f"rank {rank}", host=f"algo-{rank // 2 + 1}", role=Role.RANK, argv=(), rank=rank)
        for rank in range(4)
    ]
    hosts = tuple(
        HostPlan(name=name, environment={}, processes=tuple(rank for rank in ranks if rank.host == name))
        for name in ("algo-1", "algo-2")
    )
    plan = Plan(strategy=strategy, membership=Membership.of(("algo-1", "algo-2")), hosts=hosts)
    text = TRACEBACK.replace("ValueError: no data", UNHEALTHY)
    one = member(text, exit_code=1)
    assert reports.is_consequence(one)
    failure = reports.lost_ranks(reports.of_member(one, "algo-1"), plan)
    assert failure.message.startswith("UnavailableError: The following tasks are unhealthy")
    assert ("lost contact with algo-1, rank 1; algo-2, rank 3." in " ".join(failure.hints)) is hinted
    plain = reports.of_member(member(TRACEBACK, exit_code=1), "algo-1")
    assert reports.lost_ranks(plain, plan) == plain


def test_an_exception_whose_process_has_not_ended() -> None:
    failure = reports.of_member(member(exception=exception()), "algo-1")
    assert failure.summary() == "algo-1, rank 3: ValueError: no data"


def test_a_traceback_that_was_only_printed_is_found() -> None:
    """As by a launcher of the user's own, or a Python that our hook is not in."""
    failure = reports.of_member(member("epoch 1\n" + TRACEBACK, exit_code=1), "algo-1")
    assert failure.traceback == TRACEBACK.rstrip("\n") or failure.traceback == TRACEBACK
    assert "ValueError: no data" in failure.message


def test_without_a_traceback_the_last_lines_are_the_detail() -> None:
    failure = reports.of_member(member("one\ntwo\nthe disk is full\n", exit_code=3), "algo-1")
    assert failure.message == "exited with code 3"
    assert failure.traceback is None
    assert failure.log_tail is not None and failure.log_tail.endswith("the disk is full")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGABRT])
def test_signals_have_names_and_hints(number: signal.Signals) -> None:
    failure = reports.of_member(member("x\n", signal=number), "algo-1")
    assert failure.message == f"was killed by {number.name}"
    assert failure.signal == number
    assert any(number.name in hint for hint in failure.hints)


def test_a_wrapper_that_vanished_is_told() -> None:
    failure = reports.of_member(member(signal=signal.SIGKILL, vanished=True), "algo-1")
    assert failure.message == "was killed by SIGKILL together with the process that started it"


def test_what_could_not_be_started_is_a_failure_of_the_launch() -> None:
    failure = reports.of_member(member(start_error="No such file or directory: /x", exit_code=127), "algo-1")
    assert failure.cause is Cause.LAUNCH
    assert "No such file or directory: /x" in failure.message


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("ModuleNotFoundError: No module named 'horovod'", "horovod is not installed in the Python that runs the job"),
        ("ModuleNotFoundError: No module named 'pandas.core'", "add pandas.core to a requirements.txt"),
        ("train.py: error: unrecognized arguments: --epochs 3 --lr=1", "declare --epochs, --lr in its argument parser"),
        ("train.py: error: unrecognized arguments: True", "arguments=['--NAME']"),
        ("t.py: error: argument --layers: invalid int value: '[64, 32]'", "arguments=['--layers', '64', '32']"),
        ("t.py: error: argument -l/--layers: invalid int value: '[64]'", "arguments=['-l', '64'] in place"),
        ("train.py: error: argument --prefix: expected one argument", "arguments=['--prefix=VALUE']"),
        ("OSError: [Errno 28] No space left on device", "`fleetfit clean`"),
        ("AttributeError: module 'horovod.torch' has no attribute 'init'", "`fleetfit install horovod torch`"),
        ("ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!", "backend='gloo'"),
        ("ResourceExhaustedError: OOM when allocating tensor", "smaller batch size"),
        ("OSError: [Errno 98] Address already in use", "port 0"),
        (
            "RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:3969.",
            "that rank has ended earlier",
        ),
        ("addresses of (algo-1, 29500) cannot be retrieved (gai error: -2 - Name or", "FLEETFIT_MASTER_ADDR, for"),
        ("ssh: Could not resolve hostname algo-2: Name or service not known", "FLEETFIT_MASTER_ADDR, for"),
    ],
)
def test_hints(text: str, hint: str) -> None:
    (said,) = reports.hints(text)
    assert hint in said


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("ModuleNotFoundError: No module named 'horovod'", "horovod is not installed on the host"),
        ("OSError: [Errno 28] No space left on device", "the host's disk is full"),
    ],
)
def test_hints_for_another_machine_do_not_name_commands_of_this_one(text: str, hint: str) -> None:
    (said,) = reports.hints(text, situation=Situation(base_dir="/tmp/x", elsewhere=True))
    assert hint in said and "fleetfit" not in said


def test_other_texts_have_no_hints() -> None:
    assert reports.hints("ValueError: no data") == ()


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (member(exit_code=1, exception=exception(message="[Op:HorovodX] Horovod has been shut down. This")), True),
        (member(exit_code=1, exception=exception()), False),
        # it handled the other's failure, and then failed by itself
        (member("Horovod has been shut down\n" + TRACEBACK, exit_code=1, exception=exception()), False),
        (member("E: Horovod has been shut down.\n", exit_code=1), True),
        (member("fine\n", exit_code=1), False),
        # TensorFlow's ranks, whose peer was killed
        (member(exit_code=1, exception=exception(message="Collective ops is aborted by: Socket closed")), True),
        (member(exit_code=1, exception=exception(message='{grpc_message:"Socket closed", grpc_status:14}')), True),
        (member(exit_code=1, exception=exception(message="UNAVAILABLE: failed to connect to all addresses")), True),
    ],
)  # fmt: skip
def test_consequences_of_anothers_failure_are_known_by_what_they_say(one: ClusterProcess, expected: bool) -> None:
    assert reports.is_consequence(one) is expected


#: What a script of Keras 2 raises under Keras 3, each behind a frame of where it comes from.
RAISED_BY_KERAS_3 = [
    (
        "lib/keras/src/utils/tracking.py",
        "TypeError: Trainer.compile() got an unexpected keyword argument 'experimental_run_tf_function'",
    ),
    ("lib/horovod/_keras/callbacks.py", "AttributeError: 'Adam' object has no attribute 'lr'"),
    ("lib/horovod/_keras/callbacks.py", "AttributeError: 'Variable' object has no attribute 'ref'"),
    (
        "lib/tensorflow/python/framework/constant_op.py",
        "ValueError: Attempt to convert a value (PerReplica:{\n  0: <tf.Tensor: shape=(16, 8), numpy=\narray([[1, 2],\n"
        + "       [3, 4],\n" * 90
        + "       [5, 6]])>\n}) with an unsupported type "
        "(<class 'tensorflow.python.distribute.values.PerReplica'>) to a Tensor.",
    ),
    (
        "lib/keras/src/saving/saving_api.py",
        "ValueError: Invalid filepath extension for saving. Please add either a `.keras` extension",
    ),
]


def raised(file: str, said: str, situation: Situation | None = None) -> Failure:
    text = f'Traceback (most recent call last):\n  File "{file}", line 1, in f\n    x\n{said}\n'
    kind, _, message = said.partition(": ")
    told = {"pid": 7, "type": kind, "message": message, "traceback": text}
    return reports.of_member(member("", exit_code=1, exception=told), "algo-1", situation)


@pytest.mark.parametrize(("file", "said"), RAISED_BY_KERAS_3)
def test_scripts_of_keras_2_are_told_of_the_variable(file: str, said: str) -> None:
    (hint,) = raised(file, said).hints
    assert "environment={'TF_USE_LEGACY_KERAS': '1'}" in hint
    assert "--env TF_USE_LEGACY_KERAS=1" in hint
    (hint,) = raised(file, said, Situation(environment={"TF_USE_LEGACY_KERAS": "1"})).hints
    assert "import tf_keras" in hint


def test_an_attribute_lr_of_the_users_own_is_no_matter_of_keras() -> None:
    assert raised("train.py", "AttributeError: 'Schedule' object has no attribute 'lr'").hints == ()


def test_arrays_in_a_message_are_left_out() -> None:
    failure = raised(*RAISED_BY_KERAS_3[3])
    assert failure.message == (
        "ValueError: Attempt to convert a value (PerReplica:{ … }) with an unsupported type (<class "
        "'tensorflow.python.distribute.values.PerReplica'>) to a Tensor. (exited with code 1)"
    )
    lines = str(failure.traceback).splitlines()
    assert len(lines) < 20
    assert lines[1] == '  File "lib/tensorflow/python/framework/constant_op.py", line 1, in f'
    assert "… 83 lines left out; the log has them …" in lines
    assert lines[-1].endswith("to a Tensor.")


@pytest.mark.parametrize(
    ("channels", "hint"),
    [
        (("training",), "is 'training' (SM_CHANNEL_TRAINING): for SM_CHANNEL_TRAIN, use fit({'train'"),
        (("training",), "-i train=PATH, or let the script read SM_CHANNEL_TRAINING."),
        (("data",), "or let the script read SM_CHANNEL_DATA."),
        (("a", "b"), "the job's channels are 'a' (SM_CHANNEL_A), 'b' (SM_CHANNEL_B):"),
        ((), "has no channels: to set SM_CHANNEL_TRAIN, use fit({'train': 'PATH'}), or -i"),
    ],
)
def test_a_channel_that_the_job_does_not_have(channels: tuple[str, ...], hint: str) -> None:
    (said,) = raised("train.py", "KeyError: 'SM_CHANNEL_TRAIN'", Situation(channels=channels, strategy="mpi")).hints
    assert hint in said


@pytest.mark.parametrize(
    ("said", "base", "hinted"),
    [
        ("PermissionError: [Errno 13] Permission denied: '/opt/ml'", "/home/jobs/a/ml", True),
        ("PermissionError: [Errno 13] Permission denied: '/opt'", "/home/jobs/a/ml", True),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/opt/ml/input/data/train/x.csv'", "/a/ml", True),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/opt/ml/input/data/train/x.csv'", "/opt/ml", False),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/opt/mlflow/x'", "/a/ml", False),
    ],
)
def test_a_script_that_opens_opt_ml_itself(said: str, base: str, hinted: bool) -> None:
    assert bool(raised("train.py", said, Situation(base_dir=base)).hints) == hinted


@pytest.mark.parametrize(("strategy", "having"), [("mpi", "strategy is mpi"), (None, "the job has no strategy")])
def test_tf_config_is_of_other_strategies(strategy: str | None, having: str) -> None:
    (said,) = raised("train.py", "KeyError: 'TF_CONFIG'", Situation(strategy=strategy)).hints
    assert "collective_all_reduce" in said
    assert "parameter_server" in said
    assert having in said


def test_an_exception_that_the_script_took_gives_no_hint() -> None:
    printed = "ModuleNotFoundError: No module named 'tensorboard'\nso no graphs\n" + TRACEBACK
    assert reports.of_member(member(printed, exit_code=1, exception=exception()), "algo-1").hints == ()


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        ("", "exited with code 1 and printed nothing. After a request to stop (SIGTERM or SIGINT), mpirun ends in"),
        ("mpirun lost its daemon on algo-2.\n", "lost its daemon on algo-2, and ended the ranks. The daemon was ended"),
        ("There are not enough slots.\n", "exited with code 1"),
    ],
)
def test_why_mpirun_ended(printed: str, told: str) -> None:
    failure = reports.of_launcher(member(printed, exit_code=1), "algo-1", [])
    assert failure.message.startswith(told)
    assert (failure.message == "exited with code 1") is ("slots" in printed)
    assert (failure.log_tail is not None) is ("slots" in printed)
