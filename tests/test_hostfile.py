"""Lists of hosts: each slip that users report gives the right hosts or one clear line with its column."""

from __future__ import annotations

import re
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_mnist.cluster import ranges
from hvd_mnist.cluster.hostfile import (
    READABLE,
    WRITABLE,
    Host,
    HostList,
    caret,
    filter_hosts,
    looks_like_hosts,
    not_expressible,
    parse_hostfile,
    parse_hosts,
    parse_slurm,
    read_hostfile,
    render,
    scan_hostfile,
)
from hvd_mnist.errors import EnvironmentUnfit, HostFileError, UsageError

HOSTFILES = Path(__file__).resolve().parent.parent / "hostfiles"


# ---- -H ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h1:4,h2:4", "h1:4,h2:4"),
        (" h1:4 , h2:4 ", "h1:4,h2:4"),
        ("h1:4 h2:4", "h1:4,h2:4"),
        ("h1:4,h2:4,", "h1:4,h2:4"),  # volcano#1321: schedulers write a comma at the end
        ("h1,h2:2", "h1,h2:2"),
        ("gpu[01-04]:4", "gpu01:4,gpu02:4,gpu03:4,gpu04:4"),
        ("rack[1-2]n[3-4]:2", "rack1n3:2,rack1n4:2,rack2n3:2,rack2n4:2"),
        ("n[1,3,8-10]", "n1,n3,n8,n9,n10"),
        ("alice@h1:2,h2:2", "alice@h1:2,h2:2"),
        ("[fd00::1]:4,[::1]", "[fd00::1]:4,[::1]"),
        ("bob@[fe80::1%eth0]:2", "bob@[fe80::1%eth0]:2"),
        ("10.11.11.11:4,10.11.11.12:4", "10.11.11.11:4,10.11.11.12:4"),
        ("worker-0.job_ns.svc:008", "worker-0.job_ns.svc:8"),
        ("h1:4\t,\th2:4", "h1:4,h2:4"),
    ],
)
def test_hosts_text(text, expected):
    assert str(parse_hosts(text)) == expected


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("", 1, "no host"),
        (" , ", 1, "nothing between two commas"),
        ("h1:4,,h2:4", 6, "nothing between two commas"),  # an empty variable must not drop a host in silence
        (",h1:4", 1, "nothing between two commas"),
        ("h1:4:4", 4, "more than one ':'"),
        ("fd00::1:4", 6, r"in brackets: \[fd00::1:4\] or \[fd00::1\]:4"),
        ("h1: 4", 4, "slots: nothing"),
        ("h1:", 4, "slots: nothing"),
        (":4", 1, "no host name before ':'"),
        ("h1:0", 4, "a host with no slot"),
        ("h1:-1", 4, "whole number"),
        ("h1:four", 4, "whole number.*write h1:4"),
        ("h1:4.0", 4, "whole number"),
        ("h1:22222", 4, "more than 1024.*ssh-port"),
        ("h1:" + "9" * 5000, 4, "more than 1024"),
        ("h1:٤", 4, "ARABIC-INDIC DIGIT FOUR"),
        ("h1=4", 3, "'=' cannot stand.*h1:4,h2:4"),
        ("h1:4;h2:4", 5, "commas between hosts"),
        ("h1:4/h2:4", 5, "commas between hosts"),
        ("h1：4", 3, "FULLWIDTH COLON.*type the plain ':'"),
        ("h1:4，h2:4", 5, "FULLWIDTH COMMA.*type the plain ','"),
        ("h1:4、h2:4", 5, "type the plain ','"),
        ("h\u200b1:4", 2, "ZERO WIDTH SPACE"),
        ("h\x001:4", 2, "cannot stand"),
        ("4", 1, "found the number 4"),
        ("10.0.0.300:2", 1, "not an IPv4 address"),
        ("[fd00::zz]:4", 2, "not an IPv6 address"),
        ("[fd00::1", 1, r"'\[' without '\]'"),
        ("[fd00::1]4", 10, r"write \[fd00::1\]:4"),
        ("-oProxyCommand=x:1", 15, "cannot stand"),
        ("-oProxy:1", 1, "not a host name"),  # ssh would take it for an option
        ("-u@h:1", 1, "not a user name"),
        ("a@b@c:1", 1, "not a user name"),
        ("alice@", 7, "no host name"),
        ("h..x:1", 1, "not a host name"),
        ("h[1-", 2, "without its partner"),
        ("h1]", 3, "without its partner"),
        ("h[[1-2]]", 2, "without its partner"),
        ("h[3-1]", 3, "backwards.*1-3"),
        ("h[]", 3, "an empty range"),
        ("h[1,]", 5, "an empty range"),
        ("h[a-b]", 3, "not a range"),
        ("n[1-9999999999]", 2, "more than 10000 hosts"),
        ("n[1-100][1-100][1-100]", 16, "more than 10000 hosts"),
        ("n" + "[1]" * 3000, 26, "more than 8 ranges"),
        ("h1:4,h2:x", 9, "whole number"),
    ],
)
def test_hosts_text_error(text, column, says):
    with pytest.raises(HostFileError) as caught:
        parse_hosts(text)
    error = caught.value
    assert re.search(says, str(error)), str(error)
    assert error.column == column, str(error)
    assert str(error).startswith(f"-H:1:{error.column}: ") and error.hint
    assert "\n" not in str(error)
    assert error.exit_status == 6


def test_repeated_host_adds_slots_with_a_note():
    """horovodrun starts local ranks 0, 1, 0, 1 for a:2,a:2: two processes on one GPU."""
    hosts = parse_hosts("a:2,b:1,A.:3")
    assert str(hosts) == "a:5,b:1"
    assert "slots added" in hosts.notes[0] and "a:5" in hosts.notes[0]


def test_repeated_host_with_two_users_is_an_error():
    with pytest.raises(HostFileError, match="two users"):
        parse_hosts("x@a:2,y@a:2")


def test_no_slots_is_one_with_a_note():
    """horovod#978: -np 2 -H localhost."""
    hosts = parse_hosts("localhost")
    assert hosts.hosts[0].slots is None and hosts.hosts[0].slot_count == 1
    assert "no slots given" in hosts.notes[0] and "write localhost:4" in hosts.notes[0]


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("localhost:4,h2:4", "cannot reach it by that name"),
        ("127.0.0.1:4,h2:4", "cannot reach it by that name"),
        ("gpu1:4,gpu1.cluster.org:4", "one machine named twice"),
    ],
)
def test_notes_on_suspicious_lists(text, note):
    assert note in " ".join(parse_hosts(text).notes)


def test_clean_list_has_no_note():
    assert parse_hosts("h1:4,h2:4").notes == ()


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("b:4", True),  # horovod#2090, #1591: -H a:4 b:4
        (",b:4", True),
        ("b:4,c:4", True),
        ("[fd00::1]:4", True),
        ("gpu[01-04]:4", True),
        ("alice@b:4", True),
        ("python", False),
        ("train.py", False),
        ("package.module:function", False),
        ("localhost:8080", False),
        ("12:30", False),
        ("./a:4", False),
        ("http://h:4", False),
        ("a:4,b", False),
        ("", False),
        ("--flag", False),
    ],
)
def test_looks_like_hosts(word, answer):
    assert looks_like_hosts(word) is answer


# ---- host files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected", "dialect"),
    [
        ("h1 slots=4\nh2 slots=4\n", "h1:4,h2:4", "openmpi"),
        ("# c\n\n  h1 slots=2 # gpu box\n\t\nh2\tslots = 2 max_slots=4\n", "h1:2,h2:2", "openmpi"),
        ("h1 slots=4\r\nh2 slots=4\r\n", "h1:4,h2:4", "openmpi"),
        ("\ufeffh1 slots=4", "h1:4", "openmpi"),
        ("alice@h1 slots=2 port=2222", "alice@h1:2", "openmpi"),
        ("fd00::1 slots=2", "[fd00::1]:2", "openmpi"),
        ("gpu[1-2] slots=2", "gpu1:2,gpu2:2", "openmpi"),
        ("h1:4\nh2:2 user=alice\n", "h1:4,alice@h2:2", "mpich"),
        ("h1:4,h2:4", "h1:4,h2:4", "mpich"),
        ("h1\nh1\nh2\n", "h1:2,h2", "plain"),  # a PBS node file
        ("SLURM_JOB_NODELIST=n[1-2]\nSLURM_TASKS_PER_NODE=4(x2)\n", "n1:4,n2:4", "slurm"),
        ("export SLURM_NODELIST='n[1-2]'\nSLURM_NNODES=2\n", "n1,n2", "slurm"),
    ],
)
def test_hostfile_auto(text, expected, dialect):
    hosts = parse_hostfile(text, "F")
    assert (str(hosts), hosts.dialect) == (expected, dialect)


def test_max_slots_port_and_place_are_kept():
    """horovodrun reads ``a slots=2 max_slots=4`` as the host text ``a:2 max_slots``."""
    assert parse_hostfile("#\na slots=2 max_slots=4 port=22 # x", "F").hosts == (Host("a", 2, 4, None, 22, "F", 2),)


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("h1 slots 4", 4, "write h1 slots=4"),
        ("h1 slots:4", 4, "write h1 slots=4"),
        ("h1 4", 4, "write h1 slots=4"),
        ("h1 x4", 4, "write h1 slots=4"),
        ("h1 h2", 4, "one host a line"),
        ("h1 slot=4", 4, "did you mean slots=4"),
        ("h1 SLOTS=4", 4, "did you mean slots=4"),
        ("h1 gpus=4", 4, "gpus= is not read"),
        ("h1 slots=", 10, "slots: nothing"),
        ("h1 slots=0", 10, "no slot"),
        ("h1 slots=-2", 10, "whole number"),
        ("h1 slots=four", 10, "'four'"),
        ("h1 slots=4,", 10, "'4,'"),
        ("h1 slots=4 slots=2", 12, "given twice"),
        ("h1:4 slots=4", 1, "given twice"),
        ("h1 slots=4 max_slots=2", 1, "max_slots=2 is below slots=4"),
        ("h1 slots=4 port=99999", 17, "port="),
        ("a@h1 slots=4 user=b", 1, "user given twice"),
        ("h1 slots=4 user=-b", 17, "not a user name"),
        ("slots=4", 1, "where a host name is expected"),
        ("; h1 slots=4", 1, "a comment starts with '#'"),
        ("// h1", 1, "a comment starts with '#'"),
        ("^h1", 1, "not known here"),
        ("+n0", 1, "not known here"),
        ("h1 slots=4 // gpu box", 12, "a comment starts with '#'"),
    ],
)
def test_hostfile_error(text, column, says):
    with pytest.raises(HostFileError) as caught:
        parse_hostfile("ok slots=1\n" + text + "\n", "my hosts")
    error = caught.value
    assert re.search(says, str(error)), str(error)
    assert (error.line, error.column) == (2, column), str(error)
    assert str(error).startswith(f"my hosts:2:{column}: ") and error.hint


@pytest.mark.parametrize(
    ("dialect", "text", "says"),
    [
        ("horovodrun", "# c\nh slots=1", "IndexError at a comment"),
        ("horovodrun", "h slots=1 # c", "IndexError at a comment"),
        ("horovodrun", "h slots=1\n\ng slots=1", "IndexError at a blank line"),
        ("horovodrun", "h", "needs slots="),
        ("horovodrun", "h:2", "does not read name:slots"),
        ("horovodrun", "h slots=2 max_slots=4", "max_slots= is not read"),
        ("horovodrun", "a@h slots=2", "only plain names"),
        ("deepspeed", "h", "needs slots="),
        ("deepspeed", "h slots=1\nh slots=1", "line 1 already"),
        ("deepspeed", "", "no host in this file"),
        ("openmpi", "h:2", "does not read name:slots"),
        ("openmpi", "h slots=1 user=a", "user= is not read"),
        ("mpich", "h slots=2", "slots= is not read"),
        ("mpich", "h:2 # c", "MPICH refuses a comment"),
        ("slurm", "SLURM_TASKS_PER_NODE=2", "without SLURM_JOB_NODELIST"),
        ("slurm", "n[1-3] 2(x2)", "tasks for 2 nodes"),
        ("slurm", "h slots=2", "is not Slurm's"),
    ],
)
def test_strict_dialects_refuse_what_the_tool_refuses(dialect, text, says):
    with pytest.raises(HostFileError, match=says):
        parse_hostfile(text, "F", dialect)


def test_all_bad_lines_are_found():
    hosts, errors = scan_hostfile("a slots=1\nb slot=1\nc slots=1\nd slots=x\n", "F")
    assert [error.line for error in errors] == [2, 4]
    assert str(hosts) == "a:1,c:1"
    with pytest.raises(HostFileError, match="1 more bad lines: hvd-mnist hosts check F"):
        parse_hostfile("b slot=1\nd slots=x\n", "F")


def test_notes_on_files():
    assert "CRLF" in parse_hostfile("a slots=1\r\n", "F").notes[0]
    assert "two dialects" in parse_hostfile("a slots=1\nb:1\n", "F").notes[0]
    assert "binding= is left out" in parse_hostfile("a:1 binding=user:0\n", "F").notes[0]


@pytest.mark.parametrize("text", ["", "\n\n", "# only\n# comments\n"])
def test_empty_file_is_an_error(text):
    with pytest.raises(HostFileError, match="no host in this file"):
        parse_hostfile(text, "F")


def test_unknown_dialect():
    with pytest.raises(UsageError, match="lam.*one of auto, openmpi"):
        parse_hostfile("a", "F", "lam")
    with pytest.raises(UsageError, match="lam"):
        render([], "lam")


def test_missing_file_is_an_error_and_not_a_local_run(tmp_path):
    """DeepSpeedExamples#575: an explicitly given, missing hostfile was only a warning."""
    with pytest.raises(HostFileError, match="No such file.*no job is started"):
        read_hostfile(tmp_path / "none")


def test_files_that_are_no_text(tmp_path):
    with pytest.raises(HostFileError, match="a folder"):
        read_hostfile(tmp_path)
    file = tmp_path / "h"
    file.write_bytes("h1 slots=4".encode("utf-16"))
    with pytest.raises(HostFileError, match="UTF-16"):
        read_hostfile(file)
    file.write_bytes(b"h1 slots=4\nh\xff slots=4\n")
    with pytest.raises(HostFileError, match="h:2:1: not UTF-8"):
        read_hostfile(file)
    with pytest.raises(HostFileError, match="longer than|not a regular file"):
        read_hostfile("/dev/zero")


def test_a_pipe_without_writer_does_not_hang(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(HostFileError, match="not a regular file"):
        read_hostfile(tmp_path / "pipe")


@pytest.mark.parametrize("path", sorted(HOSTFILES.iterdir()), ids=lambda path: path.name)
def test_examples_are_read_as_their_own_tool_reads_them(path):
    dialect = path.name if path.name in READABLE else "auto"
    hosts = read_hostfile(path, dialect)
    assert hosts.total_slots >= 2
    assert str(hosts) == str(read_hostfile(path))  # auto finds the same


def test_every_dialect_has_an_example():
    assert set(WRITABLE) <= {path.name for path in HOSTFILES.iterdir()}


# ---- limits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "n[1-9999999999]",
        "n[1-" + "9" * 100_000 + "]",
        ",".join(["n[1-9999]"] * 10_000),
        "[1-9]" * 9_000,
        "n[" + "1-9999," * 10_000 + "1]",
        ":" * 60_000,
        "," * 60_000,
        "[" * 60_000,
        "a" * 2_000_000,
        "h " * 30_000,
    ],
    ids=lambda text: text[:20],
)
def test_hostile_text_costs_little(text):
    tracemalloc.start()
    begin = time.process_time()
    with pytest.raises(HostFileError):
        parse_hosts(text)
    spent, (_, peak) = time.process_time() - begin, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert spent < 20 and peak < 200e6, (spent, peak)


@given(st.text(alphabet="ahn019.:,@-_[]= \t#\n%é：", max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_text_gives_hosts_or_a_placed_error(text):
    for read in (parse_hosts, lambda given: parse_hostfile(given, "F")):
        try:
            hosts = read(text)
        except HostFileError as error:
            assert error.hint and error.line >= 1 and 1 <= error.column <= len(error.text) + 1
            assert caret(error).count("\n") <= 1
        else:
            assert hosts.hosts and len({host.name.lower().rstrip(".") for host in hosts}) == len(hosts)


# ---- Slurm ------------------------------------------------------------------------------------------------------


def test_slurm_variables():
    assert str(parse_slurm("gpu[01-03],cpu1", "4(x2),2,8")) == "gpu01:4,gpu02:4,gpu03:2,cpu1:8"
    assert str(parse_slurm("rack[1-2]n[3-4]", "1(x4)")) == "rack1n3:1,rack1n4:1,rack2n3:1,rack2n4:1"
    assert str(parse_slurm("n1")) == "n1"


@pytest.mark.parametrize(
    ("nodes", "tasks", "says"),
    [
        ("n[1-3]", "4(x2)", r"tasks for 2 nodes \(4\(x2\)\), but the list has 3 \(n\[1-3\]\)"),
        ("n1", "4(x0)", "tasks per node: '4.x0.'"),
        ("n1", "0", "tasks per node: '0'"),
        ("n1", "4(3)", "tasks per node"),
        ("n1", "", "tasks per node"),
        ("n1", "4(x999999999)", "more than 10000 nodes"),
        ("n1", "999999", "more than 1024"),
        ("", "4", "empty node list"),
        ("n[1-", "4", "without its partner"),
    ],
)
def test_slurm_error(nodes, tasks, says):
    with pytest.raises(HostFileError, match=says):
        parse_slurm(nodes, tasks)


@given(
    st.lists(
        st.builds(
            "{}{:0{}d}{}".format,
            st.sampled_from("ab"),
            st.integers(8, 12),
            st.integers(1, 3),
            st.sampled_from(["", "n9"]),
        ),
        min_size=1,
        unique=True,
    )
)
@settings(deadline=None)
def test_compressed_names_expand_to_themselves_in_order(names):
    text = ranges.compress(names)
    assert [host.name for host in parse_slurm(text)] == names


@given(st.lists(st.integers(1, 5), min_size=1, max_size=30))
def test_compressed_tasks_expand_to_themselves(tasks):
    nodes = f"n[1-{len(tasks)}]"
    assert [host.slots for host in parse_slurm(nodes, ranges.compress_tasks(tasks))] == tasks


def test_compress_keeps_zeros_and_order():
    assert ranges.compress(["n09", "n10", "n2", "n1", "x"]) == "n[09-10],n2,n1,x"
    assert ranges.compress(["n9", "n10", "n099", "n100"]) == "n[9-10],n[099-100]"


def test_a_range_without_python_hostlist_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "hostlist", None)
    assert str(parse_hosts("h1:4")) == "h1:4"
    with pytest.raises(EnvironmentUnfit, match="pip install python-hostlist"):
        parse_hosts("h[1-2]:4")


# ---- filters ----------------------------------------------------------------------------------------------------

LIST = parse_hosts("h1:4,h2:4,[fd00::1]:2")


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        ("h1", None, [("h1", 4, None)]),
        ("h1@h2:0,2", None, [("h1", 4, None), ("h2", 2, (0, 2))]),
        ("h2:2,0,2", None, [("h2", 2, (0, 2))]),
        ("h[1-2]:3", None, [("h1", 1, (3,)), ("h2", 1, (3,))]),
        ("h2:0@h2:1", None, [("h2", 2, (0, 1))]),
        (None, "h1@h2:0", [("h2", 3, (1, 2, 3)), ("fd00::1", 2, None)]),
        (None, "[fd00::1]", [("h1", 4, None), ("h2", 4, None)]),
        (None, None, [("h1", 4, None), ("h2", 4, None), ("fd00::1", 2, None)]),
        ("[fd00::1]:1", None, [("fd00::1", 1, (1,))]),
    ],
)
def test_filter(include, exclude, expected):
    kept = filter_hosts(LIST, include, exclude)
    assert [(host.name, host.slots, host.slot_ids) for host in kept] == expected


def test_filters_chain():
    once = filter_hosts(LIST, include="h2:1,2,3")
    assert filter_hosts(once, exclude="h2:2").hosts[0].slot_ids == (1, 3)
    with pytest.raises(HostFileError, match="h2 has no slot 0: its slots are 1, 2, 3"):
        filter_hosts(once, include="h2:0")


@pytest.mark.parametrize(
    ("include", "exclude", "error", "says"),
    [
        ("h1", "h2", UsageError, "exclude one another"),
        ("", None, UsageError, "--include is empty"),
        ("h11", None, HostFileError, "host h11 is not in the list.*did you mean h1"),
        ("zzz", None, HostFileError, "the list has h1, h2"),
        ("h1:4", None, HostFileError, "h1 has no slot 4: its slots are 0-3"),
        ("h1:a", None, HostFileError, "is not a filter"),
        ("h1@@h2", None, HostFileError, "is not a filter"),
        ("h1:0,,1", None, HostFileError, "slots '0,,1'"),
        (None, "h1@h2@[fd00::1]", HostFileError, "no slot is left"),
    ],
)
def test_filter_error(include, exclude, error, says):
    with pytest.raises(error, match=says):
        filter_hosts(LIST, include, exclude)


# ---- writing ----------------------------------------------------------------------------------------------------

LETTERS = st.text("abx", min_size=1, max_size=3)
NAMES = st.builds("{}{}{}".format, LETTERS, st.integers(0, 1010), st.sampled_from(["", "-x", ".org", "n07", "n7"]))
HOSTS = st.lists(
    st.builds(
        Host,
        name=NAMES,
        slots=st.integers(1, 1024),
        user=st.none() | LETTERS,
        max_slots=st.none(),
        port=st.none() | st.integers(1, 65535),
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda host: host.name,
)
KEPT = {
    "openmpi": {"user", "port"},
    "mpich": {"user"},
    "intel": {"user"},
    "deepspeed": {"user"},
    "horovodrun": set(),
    "slurm": set(),
}


@pytest.mark.parametrize("dialect", WRITABLE)
@given(hosts=HOSTS)
@settings(max_examples=50, deadline=None)
def test_round_trip(dialect, hosts):
    """What is written is read back alike, by this dialect's own strict grammar and by auto."""
    text = render(hosts, dialect)
    expected = [
        (h.name, h.slots, h.user if "user" in KEPT[dialect] else None, h.port if "port" in KEPT[dialect] else None)
        for h in hosts
    ]
    for reader in (dialect, "auto"):
        assert [(h.name, h.slots, h.user, h.port) for h in parse_hostfile(text, "F", reader)] == expected
    lost = {what for what in ("user", "port") if what not in KEPT[dialect] and any(getattr(h, what) for h in hosts)}
    said = " ".join(not_expressible(hosts, dialect))
    assert {what for what in ("user", "port") if f"cannot say {what}" in said} == lost


def test_render_writes_what_each_tool_was_seen_to_accept():
    hosts = HostList((Host("h1", 4, 8), Host("h2", None, user="alice")), "openmpi")
    assert render(hosts, "openmpi") == "h1 slots=4 max_slots=8\nalice@h2 slots=1\n"
    assert render(hosts, "mpich") == render(hosts, "intel") == "h1:4\nh2:1 user=alice\n"
    assert render(hosts, "horovodrun") == "h1 slots=4\nh2 slots=1\n"
    assert render(hosts, "deepspeed") == "h1 slots=4\nalice@h2 slots=1\n"
    assert render(hosts, "slurm") == "SLURM_JOB_NODELIST=h[1-2]\nSLURM_TASKS_PER_NODE=4,1\n"


def test_what_a_dialect_cannot_say_is_said():
    chosen = filter_hosts(parse_hosts("h1:4"), include="h1:2,3")
    assert "cannot say slot_ids" in not_expressible(chosen, "openmpi")[0]
    assert "IPv6" in not_expressible(parse_hosts("[::2]:1"), "mpich")[0]
    assert not_expressible(parse_hosts("h1:4"), "horovodrun") == ()


def test_horovod_reads_what_we_write_for_it(tmp_path):
    their = pytest.importorskip("horovod.runner.common.util.hosts")
    file = tmp_path / "h"
    file.write_text(render(parse_hosts("h1:4,h[2-3]:2"), "horovodrun"))
    assert their.parse_host_files(str(file)) == "h1:4,h2:2,h3:2"
    assert their.parse_hosts_and_slots(str(parse_hosts("h1:4,h2:4"))) == (["h1", "h2"], {"h1": 4, "h2": 4})


def test_caret_stands_under_the_fault():
    error = scan_hostfile("\th1 slots=x\n", "F")[1][0]
    assert caret(error) == "\th1 slots=x\n\t         ^"
    with pytest.raises(HostFileError) as caught:
        parse_hosts("，h1:4")
    assert caret(caught.value) == "，h1:4\n^"
    with pytest.raises(HostFileError) as caught:
        parse_hosts("h1:1," * 100 + "h:x")
    line, mark = caret(caught.value).split("\n")
    assert line[mark.index("^")] == "x"
