"""What is answered to wrong command lines and calls: one line, in the words of who asked."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from estimators import RunOptions, TensorFlow
from estimators.cli.main import main
from estimators.cli.translating import in_options


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["train", "ok.py", "--hosts", "-1"], "argument -n/--hosts: must be a whole number of at least 1, got '-1'."),
        (["train", "ok.py", "--hots", "2"], "unrecognized arguments: --hots 2. Did you mean '--hosts'?"),
        (["train", "ok.py", "--instance-count", "2"], "--instance-count 2. Did you mean '--hosts'?"),
        (["train"], "SCRIPT is missing: name the entry point, or a job file with -f."),
        (["trian", "ok.py"], "argument COMMAND: invalid choice: 'trian'. Did you mean 'train'? See"),
        (["image", "build", "--tagg", "x"], "--tagg x. Did you mean '--tag'? See `fleetfit image build --help`."),
        (["train", "ok.py", "--priority", "hi"], "argument --priority: must be a whole number, got 'hi'."),
        (["plan", __file__, "--backend-option", "memry=3"], "--backend-option: 'memry' is unknown, because"),
        (["s3", "/nonexistent/folder"], "there is no folder '/nonexistent/folder'. Make the folder first: mkdir -p"),
    ],
)
def test_a_wrong_command_line_is_answered_in_one_line(
    words: list[str], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr().err
    assert answer in said and len(said.splitlines()) == 1 and said.startswith("fleetfit: ")


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (lambda: TensorFlow("train.py"), r"argument is py_version, .*\. Write TensorFlow\(entry_point='train.py'\)"),
        (lambda: TensorFlow(entry_point="x.py").fit(epochs=3), r"give the estimator hyperparameters=\{'epochs': 3\}"),
        (lambda: TensorFlow(entry_point="x.py").fit(job_nam="x"), "Did you mean 'job_name'"),
        (lambda: RunOptions(on_nann="fail"), "Did you mean 'on_nan'"),
    ],
)
def test_a_wrong_call_is_told_what_was_meant(call: Callable[[], object], answer: str) -> None:
    with pytest.raises(TypeError, match=answer):
        call()


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (
            "use_spot_instances=True needs max_wait=… of at least max_run.",
            "--spot needs --max-wait of at least --max-run.",
        ),
        ("RunOptions(stop_grace=…) must be a number", "--stop-grace must be a number"),
        ("processes_per_host=4 is more than the 2 slots", "--processes 4 is more than the 2 slots"),
        ("distribution: give an instance", "--strategy: give an instance"),
        ("the role of a queue in the environment", "the role of a queue in the environment"),
        ("'max_run' in /a/max_run.py", "'max_run' in /a/max_run.py"),
        ("no\n    f(model_dir=args.model_dir)", "no\n    f(model_dir=args.model_dir)"),
        ("set backend_options={'python': '/x'}", "set --backend-option python='/x'"),
        ("set RunOptions(spot_market=SpotMarket(…)).", "set --spot-market."),
        ("simulate(hosts=…) must be a number", "--hosts must be a number"),
        ("--range lr: IntegerParameter(2, 1) is an empty range", "--range lr: 2:1 is an empty range"),
        ("it cannot be started:\n- image_uri is missing", "it cannot be started:\n- --image is missing"),
        ("MPI(processes_per_host=4) uses them", "--strategy mpi --processes 4 uses them"),
        ("MPI(processes_per_host=…) must be at least 1", "--processes must be at least 1"),
        ("use CollectiveAllReduce(), or MPI().", "use --strategy collective_all_reduce, or --strategy mpi."),
        ("CollectiveAllReduce(communication=…) must be", "--option communication=… must be"),
        (
            "FailurePolicy(min_hosts=5) is more than instance_count=2.",
            "--failure-policy min_hosts=5 is more than --hosts 2.",
        ),
        ("unknown option of SpotMarket 'rte'.", "unknown name in --spot-market 'rte'."),
        ("unknown option of distribution 'mpi': 'foo'.", "unknown name in --option 'foo'."),
        ("fault: Kill(at_step=1, rank=7): no such rank", "--fault kill:at_step=1,rank=7: no such rank"),
        ("set RunOptions(backend_options={'hosts': ['a', 'b']}).", 'set --backend-option hosts=\'["a", "b"]\'.'),
        ("simulate() takes records= or epochs=.", "`fleetfit simulate` takes --records or --epochs."),
        ("set AWS_REGION. In Python, you can also give sagemaker_session=…", "set AWS_REGION."),
        ("Give framework_version and py_version.", "Give framework_version and py_version in a job file (-f)."),
        ("unknown needs=… 'foo'.", "unknown --needs 'foo'."),
        ("a host with fit(faults=[Interrupt(…)])", "a host with --fault interrupt:…"),
        ("RunOptions(spot_market=SpotMarket(rate=…))", "--spot-market rate=…"),
        ("give it distribution='FullyReplicated'", "give it distribution='FullyReplicated'"),
        ("source_dir='x' (--source-dir x) sends it", "source_dir='x' (--source-dir x) sends it"),
        ("write model_dir=False to pass it", "write model_dir=False to pass it"),
    ],
)
def test_the_command_line_speaks_of_options(message: str, shown: str) -> None:
    assert in_options(message, {"records": "--records", "epochs": "--epochs"}) == shown
