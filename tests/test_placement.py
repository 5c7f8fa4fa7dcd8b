"""Hosts and -np become ranks; compared with Horovod's own assignment where Horovod can be imported."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_mnist.cluster.hostfile import Host, filter_hosts, parse_hosts
from hvd_mnist.cluster.placement import MAX_RANKS, RankPlace, place
from hvd_mnist.errors import LaunchError, UsageError

SLOTS = st.lists(st.integers(1, 6), min_size=1, max_size=7)


def hosts_of(slots):
    return [Host(f"h{index}", count) for index, count in enumerate(slots)]


@pytest.mark.parametrize(
    ("text", "np", "spread", "counts"),
    [
        ("a:4,b:4", 8, False, (4, 4)),
        ("a:4,b:4", 2, False, (2,)),  # horovodrun under Gloo starts 8
        ("a:4,b:4", 2, True, (1, 1)),
        ("a:4,b:4", 6, False, (4, 2)),
        ("a:4,b:4", 6, True, (3, 3)),
        ("a:1,b:4,c:2", 5, True, (1, 2, 2)),
        ("a:1,b:4,c:2", 6, True, (1, 3, 2)),
        ("a:4,b:4", None, False, (4, 4)),
        ("a:2,a:2", 4, False, (4,)),  # one host, local ranks 0-3: no GPU is shared
        ("localhost", 1, False, (1,)),
    ],
)
def test_counts(text, np, spread, counts):
    assert place(parse_hosts(text), np, spread).counts == counts


def test_ranks_of_two_unequal_hosts():
    assert place(parse_hosts("a:1,b:2"), 3).ranks == (
        RankPlace(0, 0, 1, "a", 0, 2, 0),
        RankPlace(1, 0, 2, "b", 1, 2, 0),
        RankPlace(2, 1, 2, "b", 0, 1, 1),  # the only host with a local rank 1: cross rank 0 of 1
    )


def test_kept_slots_are_used():
    chosen = filter_hosts(parse_hosts("a:4,b:4"), include="a:1,3@b:0")
    assert [(r.host, r.local_rank, r.slot) for r in place(chosen).ranks] == [("a", 0, 1), ("a", 1, 3), ("b", 0, 0)]


@given(slots=SLOTS, data=st.data())
@settings(deadline=None)
def test_filled_in_order_is_horovods_own_assignment(slots, data):
    their = pytest.importorskip("horovod.runner.common.util.hosts")
    np = data.draw(st.integers(1, sum(slots)))
    theirs = their.get_host_assignments([their.HostInfo(f"h{i}", n) for i, n in enumerate(slots)], np, np)
    ours = place(hosts_of(slots), np)
    assert [
        (r.host, r.rank, r.local_rank, r.cross_rank, ours.size, r.local_size, r.cross_size) for r in ours.ranks
    ] == [(s.hostname, s.rank, s.local_rank, s.cross_rank, s.size, s.local_size, s.cross_size) for s in theirs]


@given(slots=SLOTS, data=st.data(), spread=st.booleans())
@settings(deadline=None)
def test_every_placement_is_sound(slots, data, spread):
    np = data.draw(st.integers(1, sum(slots)))
    placed = place(hosts_of(slots), np, spread)
    assert [r.rank for r in placed.ranks] == list(range(np))
    assert len({(r.host, r.slot) for r in placed.ranks}) == np  # no slot holds two ranks
    assert len({(r.cross_rank, r.local_rank) for r in placed.ranks}) == np
    used = {host.name: count for host, count in zip(placed.hosts, placed.counts, strict=True)}
    for place_ in placed.ranks:
        assert 0 <= place_.local_rank < place_.local_size == used[place_.host]
        assert 0 <= place_.cross_rank < place_.cross_size
    if spread:
        free = [used.get(f"h{i}", 0) for i, n in enumerate(slots) if used.get(f"h{i}", 0) < n]
        most = max(used.values())
        assert all(count >= most - 1 for count in free)  # a host with a free slot is at most one behind


@pytest.mark.parametrize(
    ("text", "np", "says"),
    [
        ("a:4,b:2", 8, r"-np 8 needs 8 slots, but a:4,b:2 has 6 -> write -H a:4,b:4 .* or -np 6"),
        ("localhost", 2, r"localhost has no number of slots, which means 1 -> write -H localhost:2"),  # horovod#978
        ("alice@[fd00::1]:1", 2, r"-H alice@\[fd00::1\]:2"),
    ],
)
def test_too_many_ranks(text, np, says):
    with pytest.raises(LaunchError, match=says):
        place(parse_hosts(text), np)


@pytest.mark.parametrize("np", [0, -1])
def test_no_rank(np):
    with pytest.raises(UsageError, match="at least 1 rank"):
        place(parse_hosts("a:4"), np)


def test_limits():
    with pytest.raises(LaunchError, match="no host"):
        place([], 1)
    with pytest.raises(LaunchError, match=f"at most {MAX_RANKS} ranks"):
        place(parse_hosts("h[1-1000]:1024"))


def test_tables():
    placed = place(parse_hosts("a:1,b:4"), 3)
    assert placed.table_rows()[0][:3] == ("rank", "host", "local rank")
    assert placed.table_rows()[2] == ("1", "b", "0", "2", "1", "2", "0")
    assert placed.host_rows()[1:] == [("a", "0", "1 of 1"), ("b", "1-2", "2 of 4")]
