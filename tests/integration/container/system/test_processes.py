"""Starting processes that cannot outlive us, and ending whole trees of them. Real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import until

from container.system import processes

ROOT = Path(processes.__file__).parents[2]
ENV = {"PATH": "/usr/bin:/bin"}


def alive(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text[text.rindex(")") + 2] != "Z"


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Runs a program text in a Python that has ``processes``; kills it at the end."""
    started: list[subprocess.Popen[str]] = []

    def run(text: str) -> subprocess.Popen[str]:
        path = tmp_path / f"program-{len(started)}.py"
        path.write_text(
            f"import os, signal, sys, time\nsys.path.insert(0, {str(ROOT)!r})\n"
            "from container.system import processes\n" + textwrap.dedent(text)
        )
        process = subprocess.Popen(
            [sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def output(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    return out


def test_spawn_gives_exactly_what_it_is_told(program: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    process = program(
        """
        read, write = os.pipe()
        extra_read, extra_write = os.pipe()
        script = 'echo "$0|$1|$HERE|$(pwd)"; cat; ls /proc/self/fd | wc -w; [ -e /proc/$$/fd/$2 ] && echo passed'
        pid = processes.spawn(
            ["sh", "-c", script, "a b", "", str(extra_write)],
            env={"PATH": "/usr/bin:/bin", "HERE": "x y"},
            cwd="/usr",
            stdout=write,
            stderr=write,
            pass_fds=(extra_write,),
        )
        os.close(write)
        os.close(extra_write)
        with open(read) as pipe:
            print(pipe.read(), end="")
        print(os.read(extra_read, 1), processes.decode_status(os.waitpid(pid, 0)[1]))
        """
    )
    # 0, 1, 2, the passed one, and ls's own
    assert output(process).splitlines() == ["a b||x y|/usr", "5", "passed", "b'' (0, None)"]
    # The streams may be such that a careless dup2 would overwrite one that is still needed.
    process = program(
        """
        keep = os.dup(1)
        os.set_inheritable(keep, False)
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        os.dup2(out_write, 2)   # what shall become 1 is 2 now
        os.dup2(err_write, 1)   # and what shall become 2 is 1
        pid = processes.spawn(["sh", "-c", "echo out; echo err >&2"], env=dict(os.environ), stdout=2, stderr=1)
        os.waitpid(pid, 0)
        os.write(keep, os.read(out_read, 100) + os.read(err_read, 100))
        """
    )
    assert output(process) == "out\nerr\n"


def test_spawn_resets_signals_and_groups() -> None:
    old = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        read, write = os.pipe()
        script = (
            "import os, signal\n"
            "print(signal.getsignal(15) == signal.SIG_DFL, signal.pthread_sigmask(0, []) == set(), "
            "os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid())"
        )
        for new_session, new_group in ((False, False), (False, True), (True, False)):
            pid = processes.spawn(
                [sys.executable, "-c", script], env=ENV, stdout=write, new_session=new_session, new_group=new_group
            )
            os.waitpid(pid, 0)
        os.close(write)
        with open(read) as pipe:
            said = pipe.read().split("\n")[:-1]
    finally:
        signal.signal(signal.SIGTERM, old)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
    assert said == ["True True False False", "True True True False", "True True True True"]


def test_what_cannot_be_started_is_named_and_leaves_nothing(program: Callable[..., subprocess.Popen[str]]) -> None:
    """In a process of its own: what other tests have left to this one comes and goes."""
    process = program(
        f"""
        before = os.listdir("/proc/self/fd")
        for argv, cwd in (
            (["/no/such/program"], None),
            (["no-such-program-in-path"], None),
            (["/etc/passwd"], None),
            (["true"], "/no/such/folder"),
        ):
            try:
                processes.spawn(argv, env={ENV!r}, cwd=cwd)
            except OSError as error:
                print(error.filename, error.errno is not None)
        print(os.listdir("/proc/self/fd") == before)
        try:
            print("a child", os.waitpid(-1, os.WNOHANG))
        except ChildProcessError:
            print("no child")
        """
    )
    named = ["/no/such/program", "no-such-program-in-path", "/etc/passwd", "/no/such/folder"]
    assert output(process).splitlines() == [*(f"{name} True" for name in named), "True", "no child"]


def test_a_child_ends_when_its_parent_is_killed(program: Callable[..., subprocess.Popen[str]]) -> None:
    process = program(
        """
        print(processes.spawn(["sleep", "300"], env=dict(os.environ)), flush=True)
        print(processes.spawn(["sleep", "301"], env=dict(os.environ), death_signal=0), flush=True)
        time.sleep(300)
        """
    )
    assert process.stdout is not None
    tied, untied = int(process.stdout.readline()), int(process.stdout.readline())
    try:
        process.kill()
        until(lambda: not alive(tied))
        assert alive(untied)
    finally:
        os.kill(untied, signal.SIGKILL)
    # The kernel would never send the signal to a child whose parent is gone when it asks for it.
    process = program(
        """
        pid = os.fork()
        if pid == 0:
            processes.set_death_signal(signal.SIGKILL, 999_999_999)
            os._exit(0)
        print(processes.decode_status(os.waitpid(pid, 0)[1]))
        """
    )
    assert output(process) == f"(None, {int(signal.SIGKILL)})\n"


def test_nothing_below_a_subreaper_survives(program: Callable[..., subprocess.Popen[str]]) -> None:
    """Double forks, sessions of their own, ignored signals, parents that are gone, forks in the act."""
    process = program(
        """
        import json
        processes.become_subreaper()
        def chain(depth):
            if depth == 0:
                return
            if os.fork() == 0:
                os.setsid()
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                chain(depth - 1)
                if depth % 2:
                    time.sleep(300)
                os._exit(0)
        for _ in range(3):
            chain(6)
        if os.fork() == 0:  # goes on making children while it is being ended
            while True:
                if os.fork() == 0:
                    os.setsid()
                    time.sleep(300)
                time.sleep(0.001)
        while len(processes.descendants()) <= 10:
            time.sleep(0.01)
        before = processes.descendants()
        left, seen = processes.end_descendants(deadline=10)
        print(json.dumps([len(before), left, processes.descendants(), len(seen) >= len(before) - 1]))
        """
    )
    before, left, still, reaped = json.loads(output(process))
    assert before > 10
    assert (left, still, reaped) == ([], [], True)


def test_children_of_a_process_whose_first_thread_has_ended_are_found(
    program: Callable[..., subprocess.Popen[str]],
) -> None:
    """As of mpirun, which has several threads, while it ends: nobody has adopted its children yet."""
    process = program(
        """
        import ctypes, platform, threading
        processes.become_subreaper()
        parent = os.fork()
        if parent == 0:
            os.closerange(0, 3)
            if os.fork() == 0:
                time.sleep(60)
            threading.Thread(target=time.sleep, args=(60,)).start()
            ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)  # exit(2): of this thread
        while processes.state(parent) != "Z":
            time.sleep(0.001)
        print(len(processes.descendants()))
        print(processes.end_descendants(), processes.reap())
        """
    )
    number, end = output(process).splitlines()
    assert number == "2", "the process, whose second thread runs, and its child"
    assert end.startswith("([], {") and end.endswith("({}, False)"), "nothing is left, and nothing was left to be ended"


def test_spared_trees_are_left_alone_and_nothing_is_looked_at_where_nothing_is_left(
    program: Callable[..., subprocess.Popen[str]],
) -> None:
    process = program(
        """
        processes.become_subreaper()
        env = dict(os.environ)
        spared = processes.spawn(["sh", "-c", "sleep 300 & wait"], env=env)
        ended = processes.spawn(["sh", "-c", "sleep 300 & wait"], env=env)
        while len(processes.descendants()) < 4:
            time.sleep(0.01)
        left, _ = processes.end_descendants(spare={spared})
        family = processes.descendants()
        print(left == [], spared in family, ended in family, len(family))
        processes.end_descendants()
        while processes.reap()[1]:
            time.sleep(0.01)
        processes.children_by_parent = None  # reading all of /proc takes milliseconds at every job's end
        print(processes.end_descendants())
        """
    )
    assert output(process) == "True True False 2\n([], {})\n"


def test_what_is_read_of_other_processes(program: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    odd = tmp_path / "a) R 1 (b"
    odd.symlink_to("/bin/sleep")
    with subprocess.Popen([str(odd), "300"]) as process:
        assert process.pid in processes.children_by_parent()[os.getpid()], "a name with spaces and parentheses"
        assert process.pid in processes.descendants()
        process.kill()
        until(lambda: processes.state(process.pid) == "Z")
        assert process.pid not in processes.descendants(), "a zombie"
    one = program("processes.set_name('a name of more than 15 bytes')\nprint(flush=True)\ntime.sleep(60)")
    assert one.stdout is not None and one.stdout.readline() == "\n"
    assert processes.name(one.pid) == "a name of more"
    began = processes.began(one.pid)
    assert processes.lives(one.pid, began) and not processes.lives(one.pid, "1"), "another that has its pid later"
    one.kill()
    until(lambda: not processes.lives(one.pid, began))  # a zombie
    one.wait()
