"""What TensorFlow does with a step's graph, shown for the real step: the order of execution, and the placement.

One device. Every node has a count: the nodes that it waits for and that have not finished. A node whose count is 0
enters the ready queue. When a node finishes, the count of each node that waits for it falls by one.

Several devices. Every operation is placed on one device; a tensor that is needed on another is sent there, once.
"""

from __future__ import annotations

import glob
import tempfile
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hvd_mnist.run_folder import write_json

PROFILED_STEPS = 5

# ---- The order: arithmetic alone


@dataclass(frozen=True)
class Order:
    """names: in order of execution. wave: for each node the longest way to it from the start, in nodes.
    queue: length of the ready queue before each node is taken."""

    names: list[str]
    wave: dict[str, int]
    queue: list[int]


def run_by_counts(waits_for: Mapping[str, set[str]]) -> Order:
    """Execute a graph by dependency counts, one node at a time, first come first served.

    Args:
        waits_for: node -> the nodes whose results it needs, all of them keys too.

    Raises:
        ValueError: the graph has a cycle, so some counts never fall to 0.

    >>> run_by_counts({"x": set(), "w": set(), "matmul": {"x", "w"}, "loss": {"matmul"}}).queue
    [2, 1, 1, 1]
    """
    counts = {name: len(needed) for name, needed in waits_for.items()}
    waiting: dict[str, list[str]] = {name: [] for name in waits_for}
    for name, needed in waits_for.items():
        for other in needed:
            waiting[other].append(name)
    ready = deque(name for name, count in counts.items() if count == 0)
    names, queue, wave = [], [], dict.fromkeys(ready, 0)
    while ready:
        queue.append(len(ready))
        done = ready.popleft()
        names.append(done)
        for name in waiting[done]:
            counts[name] -= 1
            wave[name] = max(wave.get(name, 0), wave[done] + 1)
            if counts[name] == 0:
                ready.append(name)
    if len(names) < len(counts):
        raise ValueError(f"a cycle: {sorted(n for n, c in counts.items() if c > 0)[:5]} never become ready")
    return Order(names, wave, queue)


def critical_path(waits_for: Mapping[str, set[str]], cost: Mapping[str, float]) -> tuple[list[str], float]:
    """The chain of nodes that costs most: no number of devices makes the step faster than it. Cost 0 where unknown."""
    total: dict[str, float] = {}
    before: dict[str, str | None] = {}
    for name in run_by_counts(waits_for).names:
        longest = max(waits_for[name], key=lambda other: total[other], default=None)
        before[name] = longest
        total[name] = cost.get(name, 0.0) + (total[longest] if longest is not None else 0.0)
    end = max(total, key=total.__getitem__)
    path, here = [], end
    while here is not None:
        path.append(here)
        here = before[here]
    return path[::-1], total[end]


def part_of(name: str) -> str:
    """The upper level of the graph that a node belongs to: a layer, the gradients of a layer, the optimizer.

    >>> part_of("small_1/conv1_1/convolution"), part_of("gradient_tape/small_1/conv1_1/mul"), part_of("adam/Mul_3")
    ('conv1', 'gradient of conv1', 'optimizer')
    """
    words = name.split("/")
    backward = words[0] == "gradient_tape"
    words = words[1:] if backward else words
    if words[0].lower() in ("adam", "sgd"):
        return "optimizer"
    if words[0] in ("x", "y"):
        return "input"
    is_layer = len(words) > 2 and words[0].rpartition("_")[0] in ("small", "cnn", "mlp")
    layer = (words[1].rpartition("_")[0] or words[1]) if is_layer else "loss"
    return f"gradient of {layer}" if backward else layer


# ---- The real step


def explain_order(step, example, model, optimizer, run: Path, console) -> None:
    """Say how TensorFlow runs ``step``; write RUN/graph.json and RUN/graph.png. Training is left as it was.

    Args:
        step: a tf.function.
        example: its arguments.
    """
    operations = step.get_concrete_function(*example).graph.get_operations()
    waits_for = {op.name: {t.op.name for t in op.inputs} | {c.name for c in op.control_inputs} for op in operations}
    kinds = {op.name: op.type for op in operations}
    order = run_by_counts(waits_for)
    cost = measured_cost(step, example, [*model.variables, *optimizer.variables], set(waits_for))
    path, path_cost = critical_path(waits_for, cost)
    ready = [name for name in order.names if order.wave[name] == 0]
    spent, waves = sum(cost.values()), max(order.wave.values()) + 1
    kinds_ready = ", ".join(f"{number} {kind}" for kind, number in Counter(kinds[n] for n in ready).most_common(4))
    rows = [
        ("nodes", f"{len(waits_for)}, of {len(set(kinds.values()))} kinds"),
        ("count 0 at the start", f"{len(ready)}: {kinds_ready}"),
        ("ready queue", f"{order.queue[0]} at first, longest {max(order.queue)}, then down to {order.queue[-1]}"),
        ("waves", f"{waves}: in each, all nodes that no longer wait for an earlier one"),
        ("measured", f"{len(cost)} nodes seen running, {spent / 1000:.2f} ms of work in a step (profiler)"),
        ("not seen", f"{len(waits_for) - len(cost)} nodes: constants folded, nodes fused, too short to be recorded"),
        ("critical path", f"{len(path)} nodes, {path_cost / 1000:.2f} ms: {path_cost / spent:.0%} of the work")
        if spent
        else ("critical path", f"{len(path)} nodes; no cost was measured"),
    ]
    console.table("the step's graph, by dependency counts", rows)
    dearest = sorted((name for name in path if name in cost), key=cost.__getitem__, reverse=True)[:8]
    rows = [(name, kinds[name], order.wave[name], f"{cost[name] / 1000:.3f}") for name in dearest]
    if rows:
        console.table("the dearest nodes on the critical path", rows, ("node", "kind", "wave", "ms"))
    write_json(
        run / "graph.json",
        {
            "nodes": [
                {"name": n, "kind": kinds[n], "wave": order.wave[n], "waits_for": sorted(waits_for[n])}
                | ({"microseconds": round(cost[n], 2)} if n in cost else {})
                for n in order.names
            ],
            "ready_queue": order.queue,
            "critical_path": path,
        },
    )
    draw(order, waits_for, cost, set(path), run / "graph.png")
    console.say(f"{run / 'graph.json'}, {run / 'graph.png'}")


def measured_cost(step, example, variables, names: set[str]) -> dict[str, float]:
    """Microseconds of each node in one run of the step, by TensorFlow's profiler; what it does not see is absent.

    The step is run PROFILED_STEPS times; ``variables`` are put back afterwards.
    """
    import numpy as np
    import tensorflow as tf
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    before = [np.asarray(variable) for variable in variables]
    step(*example)  # compiles
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        for _ in range(PROFILED_STEPS):
            float(step(*example)[0])
        tf.profiler.experimental.stop()
        spaces = [Path(path).read_bytes() for path in glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)]
    for variable, value in zip(variables, before, strict=True):
        variable.assign(value)
    cost: Counter[str] = Counter()
    for content in spaces:
        for plane in xplane_pb2.XSpace.FromString(content).planes:
            for line in plane.lines:
                for event in line.events:
                    name = plane.event_metadata[event.metadata_id].name.rpartition(":")[0]
                    if name in names:
                        cost[name] += event.duration_ps / 1e6 / PROFILED_STEPS
    return dict(cost)


def draw(order: Order, waits_for, cost, path: set[str], out: Path) -> None:
    """The graph's upper levels: one box a part, from left to right by last wave; below it the ready queue."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    parts: dict[str, list[str]] = {}
    for name in order.names:
        parts.setdefault(part_of(name), []).append(name)
    edges = Counter((part_of(other), part_of(name)) for name, needed in waits_for.items() for other in needed)
    last = {part: max(order.wave[name] for name in members) for part, members in parts.items()}
    forward = sorted((p for p in parts if p != "optimizer" and not p.startswith("gradient")), key=last.__getitem__)
    places = {part: (number, 0.0) for number, part in enumerate(forward)}
    for part in parts.keys() - places.keys():
        layer = part.removeprefix("gradient of ")
        places[part] = (places[layer][0], 1.0) if layer in places else (len(forward) / 2, 2.0)
    figure = Figure(figsize=(13, 6), layout="constrained")
    boxes, queue = figure.subplots(2, 1, height_ratios=(3, 1))
    for (start, end), number in edges.items():
        if start != end:
            boxes.annotate(
                "",
                places[end],
                places[start],
                arrowprops={"arrowstyle": "->", "color": "#999999", "lw": min(3.0, 0.4 + number / 10)},
            )
    for part, members in parts.items():
        spent = sum(cost.get(name, 0.0) for name in members) / 1000
        critical = any(name in path for name in members)
        colour = "#D55E00" if critical else "#0072B2"
        text = f"{part.replace('gradient of ', 'grad ')}\n{len(members)} nodes\n{spent:.2f} ms"
        style = {"boxstyle": "round", "facecolor": "white", "edgecolor": colour, "lw": 1.5}
        boxes.text(*places[part], text, ha="center", va="center", fontsize=7, bbox=style)
    boxes.set(xlim=(-0.7, len(forward) - 0.3), ylim=(-0.5, 2.5))
    boxes.set_title(
        "the step's parts: forward, gradients above it, the update at the top; on the critical path: orange"
    )
    boxes.axis("off")
    queue.fill_between(range(len(order.queue)), order.queue, color="#009E73", alpha=0.5)
    queue.set(title="ready queue as nodes are executed, one at a time", xlabel="nodes done", ylim=(0, None))
    figure.savefig(out, dpi=110)


# ---- Placement on several devices


ANYWHERE = "anywhere"  # not placed by the program: the runtime puts it beside what it works on


def device_of(operation) -> str:
    return operation.device.removeprefix("/job:localhost/replica:0/task:0") or ANYWHERE


def crossings(operations) -> list[dict]:
    """Every tensor that is made on one device and needed on another, once for each other device.

    Args:
        operations: of a graph in which every operation has its device.

    Returns:
        [{"tensor", "from", "to", "bytes"}]; bytes is None where the shape is not known beforehand.
    """
    found = {}
    for op in operations:
        for tensor in op.inputs:
            source, to = device_of(tensor.op), device_of(op)
            if ANYWHERE not in (source, to) and source != to and tensor.dtype.name != "resource":
                size = tensor.shape.num_elements() if tensor.shape.rank is not None else None
                number = None if size is None else size * tensor.dtype.size
                found[tensor.name, to] = {"tensor": tensor.name, "from": source, "to": to, "bytes": number}
    return list(found.values())


def explain_placement(step, example, run: Path, console) -> None:
    """Say which operations of ``step`` are on which device and what crosses; write RUN/placement.json."""
    operations = step.get_concrete_function(*example).graph.get_operations()
    placed = Counter(device_of(op) for op in operations)
    kinds: dict[str, Counter] = {}
    for op in operations:
        kinds.setdefault(device_of(op), Counter())[op.type] += 1
    rows = [
        (device, number, ", ".join(f"{n} {kind}" for kind, n in kinds[device].most_common(4)))
        for device, number in placed.most_common()
    ]
    console.table("operations by device", rows, ("device", "operations", "most of them"))
    crossing = crossings(operations)
    totals: dict[tuple[str, str], list[int]] = {}
    for one in crossing:
        entry = totals.setdefault((one["from"], one["to"]), [0, 0])
        entry[0] += 1
        entry[1] += one["bytes"] or 0
    rows = [(source, to, tensors, f"{size:,}".replace(",", " ")) for (source, to), (tensors, size) in totals.items()]
    console.table("what crosses in one step", rows, ("from", "to", "tensors", "bytes"))
    write_json(
        run / "placement.json",
        {"operations": [{"name": op.name, "kind": op.type, "device": device_of(op)} for op in operations],
         "crossings": crossing},
    )  # fmt: skip
    console.say(str(run / "placement.json"))
