"""The hook in the script's interpreter: what it reports, and that nothing else changes for the script."""

from __future__ import annotations

import ast
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hooked import HOOK, Run, script


def plain_stderr(argv: list[str], cwd: Path) -> str:
    return subprocess.run(argv, cwd=cwd, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True).stderr


CHAINED = "def f():\n    raise ValueError('no é data')\ntry:\n    f()\nexcept ValueError:\n    {}['k']\n"
OWN_HOOK = """
import sys
before = sys.excepthook
def mine(*args):
    print("mine")
    before(*args)
sys.excepthook = mine
1 / 0
"""
UNPRINTABLE = "class E(Exception):\n    def __str__(self): raise ValueError\nraise E\n"


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (CHAINED, "KeyError", "'k'"),
        ("import json\njson.loads('{')\n", "json.decoder.JSONDecodeError", "property name"),
        ("def f(:\n", "SyntaxError", "invalid syntax"),
        ("def f(): f()\nf()\n", "RecursionError", "maximum recursion depth"),
        (UNPRINTABLE, "E", "cannot be printed"),
        (OWN_HOOK, "ZeroDivisionError", "division by zero"),
    ],
    ids=["chained", "of a module", "syntax", "recursion", "unprintable", "a hook of the script's"],
)
def test_an_uncaught_exception_is_one_event_and_prints_as_ever(
    text: str, kind: str, message: str, tmp_path: Path
) -> None:
    argv = script(tmp_path, text)
    run = Run(argv, tmp_path)
    assert run.code == 1
    assert run.err == plain_stderr(argv, tmp_path)
    assert run.out == ("mine\n" if text is OWN_HOOK else "")
    (event,) = run.events
    assert event["kind"] == "exception" and event["data"]["type"] == kind
    assert message in event["data"]["message"] and isinstance(event["data"]["pid"], int)
    if text is not UNPRINTABLE:
        assert event["data"]["traceback"] == run.err


@pytest.mark.parametrize("form", ["module", "shell", "package"])
def test_every_way_to_start_python(tmp_path: Path, form: str) -> None:
    script(tmp_path, "class Oops(Exception): pass\nraise Oops('x')\n")
    (tmp_path / "trainer").mkdir()
    script(tmp_path / "trainer", "raise RuntimeError('x')\n", "__main__.py")
    argv = {
        "module": [sys.executable, "-m", "train"],
        "package": [sys.executable, "-m", "trainer"],
        "shell": ["/bin/sh", "-c", f"echo start; {shlex.quote(sys.executable)} train.py --a 'b c'"],
    }[form]
    run = Run(argv, tmp_path)
    assert run.code == 1
    (event,) = run.events
    assert event["data"]["type"] == ("RuntimeError" if form == "package" else "Oops")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("import sys; sys.exit(3)", 3),
        ("raise SystemExit('stop')", 1),
        ("print('fine')", 0),
        ("import sys\ntry:\n    1/0\nexcept ZeroDivisionError:\n    sys.excepthook(*sys.exc_info())", 0),
        ("import threading\nt = threading.Thread(target=lambda: 1/0); t.start(); t.join()", 0),
        ("raise KeyboardInterrupt", None),
        ("import sys\nsys.excepthook = lambda *a: print('mine')\n1/0\n", 1),  # the script's own
    ],
)
def test_what_is_not_an_uncaught_exception(tmp_path: Path, text: str, code: int | None) -> None:
    argv = script(tmp_path, text)
    run = Run(argv, tmp_path)
    assert run.events == []
    if code is not None:
        assert run.code == code
    assert run.err == plain_stderr(argv, tmp_path)


@pytest.mark.parametrize("character", ["x", "é", "\\n", "\\x00", "😀"])
def test_the_line_is_bounded_and_keeps_the_end(tmp_path: Path, character: str) -> None:
    run = Run(script(tmp_path, f"raise ValueError('{character}' * 300_000 + 'the end')\n"), tmp_path)
    assert 20_000 < len(run.raw) <= 60_000
    assert run.raw.count(b"\n") == 1
    (event,) = run.events
    assert event["data"]["traceback"].endswith("the end\n")
    assert event["data"]["traceback"].startswith("…")


ANOTHER_FILE = """
import os
fd = int(os.environ["FLEETFIT_EVENTS"].split(":")[0])
os.dup2(os.open("other", os.O_RDWR | os.O_CREAT), fd)
1 / 0
"""


@pytest.mark.parametrize(
    ("text", "target"),
    [
        (ANOTHER_FILE, None),
        *(("1/0\n", target) for target in ("", "nonsense", "7", "-1:5", "999:1", "1:1", "2:1", "2:0:3")),
    ],
)
def test_a_bad_descriptor_is_never_the_scripts_problem(text: str, target: str | None, tmp_path: Path) -> None:
    argv = script(tmp_path, text)
    run = Run(argv, tmp_path, env=None if target is None else {"FLEETFIT_EVENTS": target})
    assert (run.code, run.out, run.events) == (1, "", [])
    if target is not None:
        assert run.err == plain_stderr(argv, tmp_path)
    else:
        assert "ZeroDivisionError" in run.err and (tmp_path / "other").read_bytes() == b""


#: Without a module that Python has not loaded: what the hook loads costs every rank's start some milliseconds.
SEEN = """
import os, sys
print(repr({
    "path": sys.path,
    "pythonpath": os.environ.get("PYTHONPATH"),
    "cache": [p for p in sys.path_importer_cache if p.endswith("hook")],
    "module": getattr(sys.modules.get("sitecustomize"), "__file__", None),
    "loaded": sorted(sys.modules),
}))
"""


def seen(tmp_path: Path, hooked: bool, path: str = "") -> dict[str, Any]:
    argv = script(tmp_path, SEEN)
    if hooked:
        run = Run(argv, tmp_path, path=path)
        assert run.err == ""
        return ast.literal_eval(run.out)  # type: ignore[no-any-return]
    env = {"PATH": os.environ["PATH"], **({"PYTHONPATH": path} if path else {})}
    out = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=True).stdout
    return ast.literal_eval(out)  # type: ignore[no-any-return]


def test_the_script_sees_nothing_of_it(tmp_path: Path) -> None:
    assert seen(tmp_path, True) == seen(tmp_path, False)
    assert seen(tmp_path, True, f"{tmp_path}::/nowhere") == seen(tmp_path, False, f"{tmp_path}::/nowhere")


def test_importing_is_told_where_the_toolkit_watches_for_hangs(tmp_path: Path) -> None:
    """At most once a second, and of each name once: a module that is tried again and again is no progress."""
    text = """
import os, time
fd = int(os.environ["FLEETFIT_EVENTS"].split(":")[0])
os.write(fd, b'{"kind":"now"}\\n')
time.monotonic = lambda: 1e9
import token, colorsys
os.write(fd, b'{"kind":"later"}\\n')
for second in range(3):
    time.monotonic = lambda: 2e9 + 2 * second
    try:
        import never_there
    except ImportError:
        pass
"""
    run = Run(script(tmp_path, text), tmp_path, env={"FLEETFIT_STACK_SIGNAL": "63"})
    kinds = [event["kind"] for event in run.events]
    assert (kinds[kinds.index("now") :], run.err) == (["now", "importing", "later", "importing"], "")
    assert [event["kind"] for event in Run(script(tmp_path, text), tmp_path).events] == ["now", "later"]


def test_the_next_sitecustomize_is_imported(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import sys\nsys.marker = __name__ + __file__\n")
    with_hook = seen(tmp_path, True, str(other))
    assert with_hook == seen(tmp_path, False, str(other))
    assert with_hook["module"] == str(other / "sitecustomize.py")
    run = Run([sys.executable, "-c", "import sys; print(sys.marker); 1/0"], tmp_path, path=str(other))
    assert run.out.strip() == "sitecustomize" + str(other / "sitecustomize.py")
    assert len(run.events) == 1


@pytest.mark.parametrize("fault", ["1/0", "import nowhere_at_all", "raise SystemExit(4)", "def f(:"])
def test_a_broken_sitecustomize_of_the_users_fails_as_it_would(tmp_path: Path, fault: str) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text(fault)
    argv = script(tmp_path, "import sys; print('on', 'sitecustomize' in sys.modules)")
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(other)}
    plain = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True)
    run = Run(argv, tmp_path, path=str(other))
    assert (run.code, run.out) == (plain.returncode, plain.stdout)
    assert run.err.splitlines()[-1:] == plain.stderr.splitlines()[-1:]


def test_child_processes_do_not_inherit_it(tmp_path: Path) -> None:
    text = "import subprocess, sys\nsys.exit(subprocess.call([sys.executable, '-c', '1/0'], close_fds=False))\n"
    run = Run(script(tmp_path, text), tmp_path)
    assert run.code == 1
    assert run.events == []


def test_forked_children_say_their_own_pids_in_whole_lines(tmp_path: Path) -> None:
    text = "import os\nprint(os.getpid(), flush=True)\nfor _ in range(8):\n    if os.fork() == 0:\n"
    text += "        raise ValueError('x' * 1000)\nwhile True:\n    os.wait()\n"
    run = Run(script(tmp_path, text), tmp_path)
    pids = [event["data"]["pid"] for event in run.events]
    assert len(set(pids)) == len(pids) == 9  # the eight, and ChildProcessError of the parent
    assert pids[-1] == int(run.out)


def test_an_elastic_worker_waits_in_its_first_init_and_hangs_up_in_shutdown(tmp_path: Path) -> None:
    """With a Horovod that leaves its connections open when it shuts down, as the real one does."""
    package = tmp_path / "horovod" / "common"
    package.mkdir(parents=True)
    (tmp_path / "horovod" / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "basics.py").write_text(
        "import os, socket\n"
        "class HorovodBasics:\n"
        "    def init(self):\n"
        "        self.rank = os.environ['HOROVOD_RANK']\n"
        "        self.ends = socket.socketpair()\n"
        "    def shutdown(self):\n"
        "        self.rank = None\n"
        "    def local_rank(self):\n"
        "        return 0\n"
        "    def local_size(self):\n"
        "        return 1\n"
    )
    script = tmp_path / "script.py"
    script.write_text(
        "import socket\n"
        "from horovod.common.basics import HorovodBasics\n"
        "others = socket.socketpair()\n"
        "hvd = HorovodBasics()\n"
        "hvd.init()\n"
        "ends = hvd.ends\n"
        "print(hvd.rank, hvd.local_rank(), hvd.local_size())\n"
        "hvd.shutdown()\n"
        "print(ends[0].recv(1), ends[1].recv(1))\n"
        "others[0].send(b'x')\n"
        "print(others[1].recv(1))\n"
        "hvd.init()\n"
    )
    events_read, events_write = os.pipe()
    place_read, place_write = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, str(script)],
            env={
                "PYTHONPATH": f"{HOOK}{os.pathsep}{tmp_path}",
                "FLEETFIT_EVENTS": f"{events_write}:{os.fstat(events_write).st_ino}",
                "FLEETFIT_PLACE_FD": str(place_read),
                "FLEETFIT_LOCAL_RANK": "1",
                "FLEETFIT_LOCAL_SIZE": "3",
            },
            pass_fds=(events_write, place_read),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert json.loads(os.read(events_read, 1 << 16))["kind"] == "worker_ready"
        os.write(place_write, b'{"HOROVOD_RANK": "2"}\n')
        output, _ = process.communicate(timeout=60)
    finally:
        for fd in (events_read, events_write, place_read, place_write):
            os.close(fd)
    assert process.returncode == 0
    assert output.splitlines() == ["2 1 3", "b'' b''", "b'x'"]


SERVER_LIB = "class Server:\n    def join(self):\n        print('joined')\n"


@pytest.mark.parametrize(
    ("call", "config", "said"),
    [
        ("Server().join()", '{"cluster": {"ps": ["a:1"]}}', True),
        ("t = threading.Thread(target=Server().join); t.start(); t.join()", '{"cluster": {"ps": ["a:1"]}}', False),
        ("Server().join()", "", False),
    ],
    ids=["main", "thread", "no servers"],
)
def test_a_script_that_joins_its_server_says_so(call: str, config: str, said: bool, tmp_path: Path) -> None:
    folder = tmp_path / "tensorflow" / "python" / "training"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent, folder.parent.parent):
        (package / "__init__.py").touch()
    (folder / "server_lib.py").write_text(SERVER_LIB)
    text = f"import threading\nfrom tensorflow.python.training.server_lib import Server\n{call}\n"
    run = Run(script(tmp_path, text), tmp_path, env={"TF_CONFIG": config})
    assert (run.code, run.out) == (0, "joined\n")
    assert [event["kind"] for event in run.events] == (["serving"] if said else [])


#: What a job tells its script, of what the stand-ins read.
JOB = {
    "SM_HOSTS": '["algo-1","algo-2"]', "SM_CURRENT_HOST": "algo-2", "SM_HPS": '{"epochs":3}', "SM_NUM_GPUS": "0",
    "SM_MODEL_DIR": "/m", "SM_CHANNELS": '["train"]', "SM_CHANNEL_TRAIN": "/data/train",
    "SM_USER_ARGS": '["--epochs","3"]',
}  # fmt: skip
SAMPLE = """
import sagemaker_containers
import sagemaker_containers.beta.framework as framework
from sagemaker_containers.beta.framework import training_env
from sagemaker_training import environment
for env in (sagemaker_containers.training_env(), framework.training_env(), training_env(), environment.Environment()):
    assert (env.hosts, env.current_host, env.is_master) == (["algo-1", "algo-2"], "algo-2", False)
    assert (env.model_dir, env.num_gpus, env.channel_input_dirs["train"]) == ("/m", 0, "/data/train")
    assert (env.hyperparameters, env.to_cmd_args()) == ({"epochs": 3}, ["--epochs", "3"])
assert environment.read_hyperparameters() == {"epochs": 3} and environment.num_gpus() == 0
print("read")
"""


def test_sagemakers_modules_where_they_are_not_installed(tmp_path: Path) -> None:
    root = str(HOOK.parent.parent)
    run = Run(script(tmp_path, SAMPLE), tmp_path, env=JOB, path=root)
    assert (run.code, run.out) == (0, "read\n"), run.err
    for text, said in (
        ("from sagemaker_training import entry_point", "there is no sagemaker_training.entry_point: "),
        ("import sagemaker_containers.beta.x", "Put sagemaker-containers into requirements.txt"),
        ("import sagemaker_inference", "No module named 'sagemaker_inference'"),
        ("import sagemaker_training.environment as e; e.Environment().topology", "has no 'topology'. It has: "),
        ("import os; del os.environ['SM_HOSTS']; from sagemaker_training.environment import Environment; Environment()",
         "belongs to no training job"),
    ):  # fmt: skip
        run = Run(script(tmp_path, text), tmp_path, env=JOB, path=root)
        assert run.code == 1 and said in run.err.splitlines()[-1], run.err


def test_sagemakers_own_modules_are_taken_where_there_are_some(tmp_path: Path) -> None:
    (tmp_path / "sagemaker_containers.py").write_text("own = True\n")
    (tmp_path / "sagemaker_training").mkdir()
    (tmp_path / "sagemaker_training" / "__init__.py").touch()
    text = """
import sys
import sagemaker_containers
assert sagemaker_containers.own
import sagemaker_training
try:
    import sagemaker_training.environment
except ModuleNotFoundError as error:
    assert str(error) == "No module named 'sagemaker_training.environment'", error
else:
    raise SystemExit("a stand-in within somebody else's package")
sys.path.append("later")  # also what is found behind everything else
import sagemaker_tensorflow
assert sagemaker_tensorflow.own
"""
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "sagemaker_tensorflow.py").write_text("own = True\n")
    run = Run(script(tmp_path, text), tmp_path, env=JOB, path=str(HOOK.parent.parent))
    assert run.code == 0, run.err


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
@pytest.mark.parametrize("first", ["", "from sagemaker_containers.beta.framework import training_env"])
def test_processes_that_multiprocessing_starts_have_the_stand_ins(tmp_path: Path, method: str, first: str) -> None:
    text = f"""
import multiprocessing
{first}

def hosts(answers):
    from sagemaker_containers.beta.framework import training_env
    from sagemaker_training import environment
    answers.put([training_env().hosts, environment.Environment().hosts])

if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    answers = context.SimpleQueue()
    child = context.Process(target=hosts, args=(answers,))
    child.start()
    child.join()
    assert child.exitcode == 0
    print(answers.get()[0])
"""
    run = Run(script(tmp_path, text), tmp_path, env=JOB, path=str(HOOK.parent.parent))
    assert (run.code, run.out) == (0, "['algo-1', 'algo-2']\n"), run.err
