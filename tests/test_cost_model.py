"""The cost model: what must hold of its formulas, what a fit gives back, and the command."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from hvd_mnist.bench import predictions, published
from hvd_mnist.bench.bandwidth import Row, bus_factor
from hvd_mnist.bench.cost_fit import LAW_OF, LAWS, Point, fit, predicted, read_sweep
from hvd_mnist.bench.cost_model import (
    ALLREDUCES,
    Links,
    Servers,
    Shape,
    efficiency,
    exchanges,
    halving,
    hierarchical,
    parameter_server,
    ring,
    shape,
    step_seconds,
    tree,
)  # fmt: skip
from hvd_mnist.bench.laws import bytes_per_step, link_seconds
from hvd_mnist.commands.bench_predict import predict as command
from hvd_mnist.errors import DataError, HvdMnistError, UsageError

BYTES = Links(0.0, 1.0, 0.0, 1.0)  # seconds are the bytes on the slowest rank's way
MESSAGES = Links(1.0, math.inf, 1.0, math.inf)  # seconds are messages one after the other
ADDED = Links(0.0, math.inf, gamma=1.0)  # seconds are the bytes added up
LINKS = Links(1e-4, 1e8, 1e-6, 1e10, 1e-10)
ranks = st.integers(1, 300)
sizes = st.integers(1, 10**9)


@given(ranks, sizes)
def test_ring_sends_the_least_possible(n, size):
    where = shape(n)
    assert ring(size, where, BYTES) == pytest.approx(size * bus_factor("allreduce", n))
    assert ring(size, where, MESSAGES) == 2 * (n - 1)
    assert ring(size, where, ADDED) == pytest.approx(size * (n - 1) / n)
    for other in ALLREDUCES.values():  # Patarasuk and Yuan: nobody sends less
        assert other(size, where, BYTES) >= ring(size, where, BYTES) * (1 - 1e-12)


@pytest.mark.parametrize(("n", "messages", "sent", "added"), [
    (1, 0, 0, 0), (2, 2, 1, 0.5), (4, 4, 1.5, 0.75), (8, 6, 1.75, 0.875),
    (3, 4, 3, 1.5), (6, 6, 3.5, 1.75),  # folded to 2 and 4: everything once there and back more
])  # fmt: skip
def test_halving(n, messages, sent, added):
    assert halving(1, shape(n), MESSAGES) == messages
    assert halving(1, shape(n), BYTES) == sent and halving(1, shape(n), ADDED) == added


@pytest.mark.parametrize(("n", "levels"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (1024, 10)])
def test_tree(n, levels):
    assert tree(7, shape(n), MESSAGES) == 2 * levels
    assert tree(7, shape(n), BYTES) == 14 * levels and tree(7, shape(n), ADDED) == 7 * levels


@given(st.integers(1, 40), st.integers(1, 16), sizes)
def test_hierarchical_is_the_ring_where_there_is_one_level(hosts, per_host, size):
    assert hierarchical(size, Shape(hosts, 1), LINKS) == pytest.approx(ring(size, Shape(hosts, 1), LINKS))
    assert hierarchical(size, Shape(1, per_host), LINKS) == pytest.approx(ring(size, Shape(1, per_host), LINKS))
    # Between hosts each link carries 2 (H - 1) / H S, whatever the ranks on them.
    between = Links(0.0, 1.0)
    assert hierarchical(size, Shape(hosts, per_host), between) == pytest.approx(2 * (hosts - 1) / hosts * size)


@given(st.integers(1, 100), st.integers(1, 100), sizes)
def test_parameter_servers_as_byteps_has_them(n, k, size):
    def cost(colocated, overlap, links=BYTES):
        return parameter_server(size, shape(n), links, Servers(k, colocated, overlap))

    assert cost(False, True) == pytest.approx(max(size, n * size / k))
    assert cost(False, False) == pytest.approx(2 * cost(False, True))
    assert cost(True, True) <= cost(True, False) * (1 + 1e-12)
    if k >= n:  # a server on every host costs what the ring does
        assert cost(True, True) == pytest.approx(ring(size, shape(n), BYTES))
        assert cost(True, False) == pytest.approx(ring(size, shape(n), BYTES))
    if k == 1:
        assert cost(True, False) == pytest.approx(2 * (n - 1) * size)


@given(st.integers(2, 50), sizes, st.floats(1, 1e5))
def test_the_laws_of_traffic_say_the_same(n, size, megabits):
    links = Links(0.0, megabits * 1e6 / 8)
    by_law = link_seconds("ring", bytes_per_step("ring", size, n), megabits)
    assert ring(size, shape(n), links) == pytest.approx(by_law)
    by_law = link_seconds("ps-sync", bytes_per_step("ps-sync", size, n, ps_bytes=[size]), megabits)
    assert parameter_server(size, shape(n), links, Servers(1)) == pytest.approx(by_law)


@given(sizes)
def test_a_rank_alone_exchanges_nothing(size):
    found = exchanges(size, shape(1), Links(1.0, 1.0, 1.0, 1.0, 1.0, wait=5.0), Servers(1, colocated=True))
    assert set(found.values()) == {0.0}


def test_limits():
    small, found = 1, exchanges(10**12, shape(1000), LINKS, Servers())
    assert min(found, key=found.get) == "ring"  # 1000 is no power of two: halving folds
    assert ring(small, shape(1000), LINKS) > halving(small, shape(1000), LINKS)  # 1998 messages against 20 and a fold
    # Per rank the ring's time for large messages tends to 2 S / B and no further.
    assert ring(10**9, shape(10_000), BYTES) == pytest.approx(2e9, rel=1e-3)
    # Four ranks a host: the flat ring sends 2 (N - 1) / N S over the link, hierarchical 2 (H - 1) / H S.
    where = shape(8, 4)
    assert ring(1, where, Links(0, 1)) == pytest.approx(1.75) and hierarchical(1, where, Links(0, 1)) == pytest.approx(
        1
    )
    assert halving(1, where, Links(0, 1)) == pytest.approx(1)
    with pytest.raises(UsageError, match="6 ranks do not fill hosts of 4 -> --ranks 4"):
        shape(6, 4)


def test_step_and_efficiency():
    assert step_seconds(1.0, 0.5, 0.0) == 1.5 and step_seconds(1.0, 0.5, 0.4) == pytest.approx(1.1)
    assert step_seconds(1.0, 0.5, 0.6) == 1.0 and efficiency(1.0, 0.5, 1.0) == 1.0
    assert efficiency(1.0, 0.5, 0.0) == pytest.approx(2 / 3)


@given(ranks, sizes, st.sampled_from(list(LAWS)))
def test_gamma_hides_in_the_bandwidth(n, size, law):
    """A rank adds up half of the bytes it takes, by every law that is fitted: no sweep can tell the two apart."""
    one = Point(n, size, 1.0, 0.0)
    assert predicted(one, law, ADDED) == pytest.approx(predicted(one, law, Links(0.0, 1.0)) / 2)


# The fit.

ALPHA, BANDWIDTH, WAIT = 3e-4, 2.5e7, 5e-3


def sweep(seed, noise=0.03, law="ring", numbers=(2,), wait=WAIT):
    """Points whose medians are off by ``noise`` x a normal number, and whose errors say so."""
    random, points = np.random.default_rng(seed), []
    for n in numbers:
        for size in 4 ** np.arange(3, 13):
            exact = predicted(Point(n, int(size), 0, 0, wait), law, Links(ALPHA, BANDWIDTH))
            points.append(Point(n, int(size), exact * (1 + noise * random.standard_normal()), noise * exact, wait))
    return points


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("numbers", [(2,), (2, 4, 8)])
def test_a_fit_gives_back_what_was_planted(law, numbers):
    within = 0
    for seed in range(60):
        found = fit(sweep(seed, law=law, numbers=numbers), law)
        assert abs(found.links.alpha - ALPHA) < 5 * found.alpha_error < 5e-3
        assert abs(found.links.bandwidth - BANDWIDTH) < 5 * found.bandwidth_error < 0.2 * BANDWIDTH
        within += abs(found.links.bandwidth - BANDWIDTH) < found.bandwidth_error
    assert 60 * 0.5 < within  # of one standard error; 0.68 where the noise is normal, more where chi^2 widened it
    assert found.links.wait == WAIT and found.ranks == numbers and found.rows == 10 * len(numbers)


def test_without_noise_it_is_exact_and_a_miss_of_the_law_widens_the_errors():
    exact = fit(sweep(0, noise=0.0))
    assert exact.links.alpha == pytest.approx(ALPHA) and exact.links.bandwidth == pytest.approx(BANDWIDTH)
    assert abs(exact.worst[1]) < 1e-9
    bent = [Point(p.ranks, p.bytes, p.seconds * (2 if p.bytes == 4**8 else 1), p.error) for p in sweep(0, noise=0.0)]
    found = fit(bent)
    assert found.worst[0] == 4**8 and found.worst[1] > 0.5 and found.alpha_error > 3 * exact.alpha_error


def test_a_negative_alpha_is_none():
    points = [Point(2, size, seconds, 1e-5) for size, seconds in ((10**6, 0.9), (2 * 10**6, 2.0), (3 * 10**6, 3.0))]
    assert fit(points).links.alpha == 0.0


@pytest.mark.parametrize(("points", "says"), [
    ([], "0 rows of two ranks or more: a fit needs three different sizes"),
    ([Point(1, size, 1.0, 0.0) for size in (1, 2, 3)], "0 rows of two ranks or more"),
    ([Point(2, size, 1.0, 0.0) for size in (1, 2, 2)], "3 rows of two ranks or more: a fit needs three"),
    ([Point(2, size, 1e-3 / size, 0.0) for size in (1, 2, 3)], "the times do not grow with the sizes"),
])  # fmt: skip
def test_what_cannot_be_fitted(points, says):
    with pytest.raises(UsageError, match=says):
        fit(points)


# Files and the command.


def rows_of(points, backend="horovod-gloo"):
    return [
        Row(backend, "allreduce", "float32", 1, p.bytes, p.ranks, (p.seconds,) * 5, 0.0, 0, 1e3 * p.wait).as_json()
        for p in points
    ]


def written(path, rows):
    path.write_text(json.dumps({"schema": 1, "complete": True, "rows": rows}))
    return str(path)


def test_a_file_of_bench_allreduce(tmp_path):
    file = written(tmp_path / "s.json", rows_of(sweep(0, 0.0)) + rows_of(sweep(0, 0.0, wait=0.0), "mpi"))
    with pytest.raises(UsageError, match="s.json measured horovod-gloo, mpi: choose one -> --backend horovod-gloo"):
        read_sweep(file)
    with pytest.raises(UsageError, match="measured horovod-gloo, mpi, not gloo"):
        read_sweep(file, "gloo")
    backend, points = read_sweep(file, "horovod-gloo", least=4**6)
    assert backend == "horovod-gloo" and len(points) == 7 and {point.wait for point in points} == {WAIT}
    assert fit(points).links.bandwidth == pytest.approx(BANDWIDTH, rel=1e-3)


GOOD = rows_of(sweep(0, 0.0))[0]


@pytest.mark.parametrize("text", [
    "", "[]", "{}", "null", "\x00", '{"rows": 3}', '{"rows": [3]}', '{"rows": []}', "[" * 10_000,
    *(json.dumps({"rows": [{**GOOD, **spoiled}]}) for spoiled in (
        {"median_us": -1}, {"median_us": "x"}, {"n": 0}, {"ranks": 0}, {"bytes": 1e999}, {"quartiles_us": [1]},
        {"quartiles_us": [2, 1]}, {"median_us": float("nan")}, {"op": "broadcast"}, {"cycle_ms": None})),
])  # fmt: skip
def test_a_file_that_is_not_ours(tmp_path, text):
    file = tmp_path / "s.json"
    file.write_text(text)
    with pytest.raises(DataError, match=r"s\.json: ") as error:
        read_sweep(file)
    assert "\n" not in str(error.value) and error.value.exit_status == 4
    with pytest.raises(DataError, match="No such file"):
        read_sweep(tmp_path / "absent")


def run(*words, status=0):
    done = CliRunner().invoke(command, [str(word) for word in words])
    if isinstance(done.exception, HvdMnistError):
        assert done.exception.exit_status == status, done.exception
        return str(done.exception)
    assert done.exit_code == status, done.output
    return done.output


def test_the_command_from_a_file(tmp_path):
    file = written(tmp_path / "s.json", rows_of(sweep(0, 0.0)))
    told = json.loads(run("--from", file, "--ranks", "1,2,8", "--bytes", "1M", "--compute-ms", "100", "--json", "-"))
    assert told["fit"]["links"]["bandwidth"] == pytest.approx(BANDWIDTH, rel=1e-3)
    last = told["rows"][-1]
    expected = 1e3 * (WAIT + 14 * ALPHA + 1.75 * 2**20 / BANDWIDTH)
    assert last["ranks"] == 8 and last["exchange_ms"]["ring"] == pytest.approx(expected, rel=1e-3)
    assert last["best"] == "halving" and last["step_ms"] == pytest.approx(100 + last["exchange_ms"]["halving"])
    shown = run("--from", file, "--ranks", "1,2,8", "--bytes", "1M", "--compute-ms", "100")
    assert "alpha 300.0 +-" in shown and "bandwidth 0.025 +-" in shown and f"{last['efficiency']:.1%}" in shown


def test_the_command_with_options(tmp_path):
    plot, out = tmp_path / "p.svg", tmp_path / "o.json"
    words = ["--bandwidth", 1.25, "--alpha-us", 20, "--ranks", "4,8", "--ranks-per-host", 4, "--local-bandwidth", 10]
    shown = run(*words, "--model", "vgg16", "--compute-ms", 400, "--overlap", 1, "--plot", plot, "--json", out)
    assert plot.read_text().lstrip().startswith("<?xml") and "hierarchical (ms)" in shown
    asked = json.loads(out.read_text())["asked"]
    assert asked["size"] == 4 * predictions.PARAMETERS["vgg16"] and asked["links"]["local_bandwidth"] == 1e10
    ring_step = json.loads(run(*words, "--compute-ms", 400, "--algorithm", "ring", "--json", "-"))["rows"][1]
    assert ring_step["step_ms"] == pytest.approx(400 + ring_step["exchange_ms"]["ring"])


@pytest.mark.parametrize(("words", "says", "status"), [
    ([], "no network is given", 2),
    (["--from", "x", "--bandwidth", "1"], "--from gives alpha and bandwidth", 2),
    (["--bandwidth", "nan"], "nan is no number", 2),
    (["--bandwidth", "inf"], "inf is no number", 2),
    (["--bandwidth", "-1"], "not in the range", 2),
    (["--bandwidth", "1", "--alpha-us", "-1"], "not in the range", 2),
    (["--bandwidth", "1", "--overlap", "1.1"], "not in the range", 2),
    (["--bandwidth", "1", "--ranks", "2,x"], "'x': expected numbers of ranks", 2),
    (["--bandwidth", "1", "--ranks", ","], "expected numbers of ranks", 2),
    (["--bandwidth", "1", "--ranks-per-host", "4"], "what do ranks of a host send each other", 2),
    (["--bandwidth", "1", "--local-bandwidth", "4"], "say nothing with one rank a host", 2),
    (["--bandwidth", "1", "--model", "vgg19"], "expected one of small, cnn, mlp", 2),
    (["--bandwidth", "1", "--model", "cnn", "--bytes", "4"], "exclude one another", 2),
    (["--bandwidth", "1", "--bytes", "4T"], "expected a number of bytes", 2),
    (["--bandwidth", "1", "--plot", "x.abc"], "is not supported", 2),
    (["--bandwidth", "1", "--json", "/nowhere/x.json"], "No such file", 4),
    (["--from", "/nowhere/x.json"], "No such file", 4),
])  # fmt: skip
def test_what_the_command_refuses(words, says, status):
    assert says in run(*words, status=status)


def test_published_results():
    shown = run("--published")
    assert all(system.name in shown and system.why in shown for system in published.SYSTEMS) and "Baidu" in shown
    vgg = next(system for system in published.SYSTEMS if system.model == "vgg16")
    low, high = published.bounds(vgg)
    exchange = 2 * 511 / 512 * 4 * 138_357_544 / 3.125e9  # by hand: a ring over 25 Gbit/s
    assert low == pytest.approx(1 / (1 + exchange * 154 / 64)) and low < vgg.efficiency < high


def test_parameters_are_those_of_our_networks():
    from hvd_mnist import models

    for name in models.NAMES:
        count = sum(int(np.prod(variable.shape)) for variable in models.build(name).trainable_variables)
        assert predictions.PARAMETERS[name] == count


def test_every_backend_has_a_law():
    from hvd_mnist.bench.exchange import LAUNCHER

    assert set(LAW_OF) == set(LAUNCHER) and set(LAW_OF.values()) <= set(LAWS)
