"""Users' options are understood, win, and are never repeated."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.launchers import mpi_options
from container.launchers.mpi_options import export, mca, merge, option, parse


def words(text: str, major: int = 4) -> list[str]:
    return [word for item in parse(text, major=major) for word in item.words]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("   ", []),
        (
            "-mca btl_tcp_if_include lo --verbose -x NCCL_DEBUG=WARN",
            ["-mca", "btl_tcp_if_include", "lo", "--verbose", "-x", "NCCL_DEBUG=WARN"],
        ),
        (
            "-verbose --NCCL_DEBUG=INFO -x OMPI_MCA_btl_vader_single_copy_mechanism=none",
            ["-verbose", "-x", "NCCL_DEBUG=INFO", "-x", "OMPI_MCA_btl_vader_single_copy_mechanism=none"],
        ),
        ("--NCCL_DEBUG WARN", ["-x", "NCCL_DEBUG=WARN"]),
        ("-NCCL_DEBUG=WARN", ["-x", "NCCL_DEBUG=WARN"]),
        ("-x 'A=b c' -x \"D=it's\"", ["-x", "A=b c", "-x", "D=it's"]),
        ("-x PATH -x LD_LIBRARY_PATH", ["-x", "PATH", "-x", "LD_LIBRARY_PATH"]),
        ("-x A= -x B==", ["-x", "A=", "-x", "B=="]),
        ("--mca btl '^openib' --bind-to core", ["--mca", "btl", "^openib", "--bind-to", "core"]),
        ("--map-by ppr:2:node:PE=2", ["--map-by", "ppr:2:node:PE=2"]),
        ("--output-filename=/tmp/x", ["--output-filename=/tmp/x"]),
        ("--tag-output -q", ["--tag-output", "-q"]),
        ("--some-new-option with two words", ["--some-new-option", "with", "two", "words"]),
        ("-x A=1 -x A=1", ["-x", "A=1"]),
        ("--verbose -v", ["--verbose"]),
        ("-mca a b --mca a b -gmca a b", ["-mca", "a", "b"]),
    ],
)
def test_options_are_read(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_openmpi_5_gets_two_dashes() -> None:
    text = "-mca a b -verbose -x C=d -np-like 3"
    assert words(text, 5) == ["--mca", "a", "b", "--verbose", "-x", "C=d", "--np-like", "3"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("-x 'A=b", ["quotation", "-x 'A=b"]),
        ("-mca btl", ["-mca needs a parameter and its value"]),
        ("-x", ["-x needs an argument"]),
        ("--bind-to", ["--bind-to needs an argument"]),
        ("lo --verbose", ["'lo' is not an option"]),
        ("-- python x.py", ["'--' is not an option"]),
        ("- x", ["'-' is not an option"]),
        ("--verbose train.py", ["'train.py' is not an option"]),
        ("-mca btl self -mca btl tcp", ["the MCA parameter btl twice", "'btl self'", "'btl tcp'", "abort"]),
        ("-x A=1 -x A=2", ["the variable A twice"]),
        ("-x OMPI_MCA_btl=self --mca btl tcp", ["the MCA parameter btl twice"]),
        ("-np 4", ["leave out -np", "instance_count x processes_per_host"]),
        ("-n 4", ["leave out -n"]),
        ("--np=4", ["leave out --np=4"]),
        ("-H a,b", ["leave out -H", "the job's own"]),
        ("--host a", ["leave out --host"]),
        ("--hostfile f", ["leave out --hostfile"]),
        ("-machinefile f", ["leave out -machinefile"]),
        ("--app f", ["entry point"]),
    ],
)
def test_what_would_break_mpirun_is_refused_with_the_reason(text: str, parts: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        parse(text)
    for part in (text, *parts):
        assert part in str(caught.value)


def test_ours_give_way_to_the_users() -> None:
    defaults = [
        option("bind-to", "none"),
        option("oversubscribe"),
        mca("pml", "ob1"),
        mca("btl_vader_single_copy_mechanism", "none"),
        export("NCCL_DEBUG", "INFO"),
    ]
    users = parse("-bind-to core -mca btl_sm_single_copy_mechanism cma --NCCL_DEBUG=WARN -x OMPI_MCA_pml=ucx")
    assert merge(defaults, users) == [
        "--oversubscribe",
        "-bind-to", "core",
        "-mca", "btl_sm_single_copy_mechanism", "cma",
        "-x", "NCCL_DEBUG=WARN",
        "-x", "OMPI_MCA_pml=ucx",
    ]  # fmt: skip


NAMES = st.text("abcdefgh_", min_size=1, max_size=6)
VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs", "Cc"]), max_size=10)
OPTIONS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["-mca", "--mca"]), NAMES, VALUES),
        st.tuples(st.just("-x"), st.builds("{}={}".format, NAMES, VALUES)),
        st.tuples(st.sampled_from(["--verbose", "-q", "--tag-output"])),
        st.tuples(st.sampled_from(["--bind-to", "--map-by"]), NAMES),
    ),
    max_size=8,
)


@given(OPTIONS)
def test_any_quoted_options_arrive_whole_and_once(given_options: list[tuple[str, ...]]) -> None:
    line = [word for item in given_options for word in item]
    try:
        parsed = parse(shlex.join(line))
    except ValueError as error:
        assert "twice" in str(error)
        return
    assert len({item.key for item in parsed}) == len(parsed)
    said = [item.words for item in parsed]
    remaining = list(given_options)
    for words_of_one in said:
        assert words_of_one in remaining
    keys = {item.key for item in parsed}
    for item in given_options:
        (one,) = parse(shlex.join(item))
        assert one.key in keys
    assert merge([], parsed) == [word for item in said for word in item]


def test_the_tables_do_not_contradict_each_other() -> None:
    tables = [mpi_options._FLAGS, mpi_options._WITH_ONE, mpi_options._WITH_TWO]
    for number, table in enumerate(tables):
        for other in tables[number + 1 :]:
            assert not table & other
