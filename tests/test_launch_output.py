"""Lines of many ranks: whose they are, which are folded, where they are kept; and which rank failed first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_mnist.cluster.hostfile import parse_hosts
from hvd_mnist.cluster.placement import place
from hvd_mnist.launch import failure, horovodrun, mpirun, srun
from hvd_mnist.launch.failure import Ending, ending_in, first_failure, lost_hosts, meaning
from hvd_mnist.launch.output import Fold, Lines, RankLogs, shown, spans

# What each launcher was seen to write for "err" of ranks 0 and 1, and for lines of its own.
SEEN = [
    (horovodrun.TAG, b"[0]<stderr>:err\n[1]<stderr>:err\nProcess 1 exit with status code 7.\n"),
    (mpirun.TAGS["openmpi-4"], b"[1,0]<stderr>:err\n[1,1]<stderr>:err[1,1]<stderr>:\nmpirun detected that\n"),
    (mpirun.TAGS["openmpi-4"], b"[1,0]<stdout>:er[1,1]<stdout>:err\n[1,0]<stdout>:r\nmpirun detected that\n"),
    (mpirun.TAGS["openmpi-5"], b"[1,0]<stderr>: err\n[1,1]<stderr>: err\nprterun detected that\n"),
    (mpirun.TAGS["openmpi-5"], b"[prterun-h1-7@1,0]<stderr>: err\n[prterun-h1-7@1,1]<stderr>: err\nprterun\n"),
    (mpirun.TAGS["mpich"], b"[0] err\n[1] err[1] \nBAD TERMINATION\n"),
    (mpirun.TAGS["intel"], b"[0] err\n[1] err[1] \nBAD TERMINATION\n"),
    (srun.TAG, b" 0: err\n 1: err\nsrun: error: node2: task 1: Exited with exit code 7\n"),
]


@pytest.mark.parametrize(("tag", "data"), SEEN)
@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_lines_find_their_rank_however_they_are_cut(tag, data, step):
    lines = Lines(tag)
    found = [line for at in range(0, len(data), step) for line in lines.feed(data[at : at + step])]
    found += lines.feed(b"")
    assert sorted(line for line in found if line[0] is not None) == [(0, "err"), (1, "err")]
    assert len([line for line in found if line[0] is None]) == 1


@pytest.mark.parametrize(
    ("tag", "line", "text"),
    [
        (srun.TAG, b"0: epoch 1: loss 2: x\n", "epoch 1: loss 2: x"),
        (mpirun.TAGS["mpich"], b"[0] a [3] b\n", "a [3] b"),
        (horovodrun.TAG, b"[0]<stdout>:[1]<stdout>:x\n", "[1]<stdout>:x"),
        (None, b"[1] anything\n", "[1] anything"),
    ],
)
def test_marks_inside_a_line_are_text(tag, line, text):
    assert Lines(tag).feed(line) == [(0, text)]


def test_a_line_without_end_is_given_in_pieces_and_bad_bytes_are_shown():
    assert sum(len(text) for _, text in Lines(None).feed(b"x" * 200_000)) == 200_000
    assert Lines(None).feed(b"\xff\n") == [(0, "\ufffd")]


def fold_all(events, **how):
    fold, out = Fold(**how), []
    for now, (rank, text) in enumerate(events):
        fold.add(rank, 1, text, now / 1000)
    out += fold.ready(len(events), all_of_them=True)
    return [(ranks, text) for ranks, _, text in out]


def test_same_lines_of_ranks_are_folded():
    events = [(0, "a"), (0, "b"), (1, "a"), (2, "a"), (1, "b"), (None, "a"), (2, "c")]
    assert fold_all(events) == [((0, 1, 2), "a"), ((0, 1), "b"), ((None,), "a"), ((2,), "c")]


def test_a_line_said_twice_by_a_rank_stays_twice():
    assert fold_all([(0, "a"), (0, "a"), (1, "a"), (1, "a")]) == [((0, 1), "a"), ((0, 1), "a")]


def test_lines_wait_no_longer_than_their_time():
    fold = Fold(0.3)
    fold.add(0, 1, "a", 10.0)
    assert list(fold.ready(10.2)) == []
    assert list(fold.ready(10.3)) == [((0,), 1, "a")]


@given(st.lists(st.tuples(st.sampled_from([0, 1, 2, None]), st.sampled_from("abc")), max_size=60), st.integers(0, 9))
def test_no_line_is_lost_and_each_rank_keeps_its_order(events, drain):
    fold, out = Fold(1e9), []
    for number, (rank, text) in enumerate(events):
        fold.add(rank, 1, text, 0.0)
        if number % 10 == drain:
            out += fold.ready(0.0, all_of_them=True)
    out += fold.ready(0.0, all_of_them=True)
    for rank in (0, 1, 2, None):
        said = [text for who, text in events if who == rank]
        assert [text for ranks, _, text in out if rank in ranks] == said
    assert all(len(set(ranks)) == len(ranks) for ranks, _, _ in out)


def test_how_lines_are_shown():
    assert shown((0, 1, 2), "x", 4, True) == "[0-2] x"
    assert shown((0, 1, 2), "x", 4, False) == "x  (3 ranks)"
    assert shown((3,), "x", 4, False) == "x"
    assert shown((None,), "mpirun: x", 4, True) == "mpirun: x"
    assert spans((5, 0, 1, 2, 7)) == "0-2,5,7"


def test_rank_logs_and_a_disk_that_refuses(tmp_path):
    logs = RankLogs(tmp_path / "logs")
    for number in range(300):
        logs.add(1, f"line {number}")
    logs.add(None, "launcher")
    logs.flush()
    assert (tmp_path / "logs" / "rank-1.out.log").read_text().splitlines()[-1] == "line 299"
    assert (tmp_path / "logs" / "launcher.log").read_text() == "launcher\n"
    assert list(logs.last[1])[0] == "line 100" and not logs.broken
    (tmp_path / "file").touch()
    broken = RankLogs(tmp_path / "file" / "logs")
    broken.add(0, "x")
    broken.flush()
    assert "the job goes on" in broken.broken


# Which rank failed first.

LOST, KILLED = 201, 137


@pytest.mark.parametrize(
    ("endings", "expected"),
    [
        ([(1, 7, False), (0, LOST, False)], 1),
        ([(0, LOST, False), (1, KILLED, False)], 1),  # the survivor speaks sooner than the guard of the dead
        ([(0, 143, True), (1, 10, False)], 1),
        ([(0, LOST, False), (1, 143, True)], 0),
        ([(2, 143, True), (1, 143, True)], 2),
        ([], None),
    ],
)
def test_first_failure_is_the_cause_and_not_a_consequence(endings, expected):
    found = first_failure(Ending(rank, "h", status, told) for rank, status, told in endings)
    assert (found and found.rank) == expected


def test_endings_are_read_from_what_the_guard_writes(capfd):
    from hvd_mnist.cluster.identity import identity_from
    from hvd_mnist.launch import guard

    me = identity_from({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, "h2")
    for status, told in ((7, False), (-9, False), (-15, True)):
        guard._report(me, 99, status, told)
    found = [ending_in(line) for line in capfd.readouterr().err.splitlines()]
    assert found == [Ending(3, "h2", 7, False), Ending(3, "h2", 137, False), Ending(3, "h2", 143, True)]
    assert ending_in("anything else") is None


def test_meaning_of_statuses():
    assert meaning(10, ours=True) == "ended with status 10 (ReplicasDiffer)"
    assert meaning(10, ours=False) == "ended with status 10"
    assert "SIGKILL, often for want of memory" in meaning(137, ours=True)
    assert meaning(201, ours=True) == "ended with status 201 (PeerLost)"
    assert meaning(255, ours=True) == "ended with status 255"


def test_lost_hosts():
    placement = place(parse_hosts("h1:2,h2:2"))
    ended = [Ending(0, "h1", 143, True), Ending(1, "h1", 143, True)]
    said = ["Process 3 exit with status code 255."]
    assert lost_hosts("horovodrun-gloo", ended, said, placement) == ("h2",)
    assert lost_hosts("horovodrun-gloo", ended, [], placement) == ()
    assert lost_hosts("openmpi-4", ended, [], placement) == ("h2",)
    assert lost_hosts("openmpi-4", [], [], placement) == ()  # it never began


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("Host key verification failed.", "ssh HOST once"),
        ("root@h2: Permission denied (publickey).", "ssh-copy-id HOST"),
        ("bash: orted: command not found", "--prefix"),
        ("bash: line 1: /opt/ompi/bin/orted: No such file or directory", "--prefix"),
        ("ssh: connect to host h2 port 22: Connection refused", "--ssh-port"),
        ("There are not enough slots available in the system", "-np"),
    ],
)
def test_known_causes_have_a_hint(said, hint):
    assert hint in failure.cause_in(said)[1]
    assert failure.cause_in("all is well") is None
