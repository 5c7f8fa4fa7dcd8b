"""How many bytes each task sends and receives in a step, and how long its link is busy: arithmetic, no measurement.

M bytes of model, N replicas. Payload only: the headers of gRPC, TCP and Ethernet come on top, a few per cent.

    ring               every rank      sends 2 (N - 1) / N M     receives 2 (N - 1) / N M
    parameter server   a ps with m     sends N m                 receives N m           (m: its part of M)
                       a worker        sends M                   receives M
    in-graph           the client      sends N M + the batch     receives N M
                       a worker        sends M                   receives M + its batch
    single, towers     nothing leaves the process
"""

from __future__ import annotations

PIXELS = 28 * 28


def bytes_per_step(system: str, model: int, replicas: int, *, ps_bytes: list[int] = (), batch: int = 0) -> dict:
    """{task: (bytes sent, bytes received)} in one step of all replicas.

    Args:
        system: "single", "towers", "in-graph", "ps-sync", "ps-async" or "ring".
        model: bytes of all trained variables.
        ps_bytes: the part of each ps task.
        batch: bytes of images and labels of one replica's batch, for the client that hands them out.
    """
    if system == "ring":
        each = 2 * (replicas - 1) / replicas * model
        return {f"rank:{rank}": (each, each) for rank in range(replicas)}
    if system.startswith("ps-"):
        servers = {f"ps:{task}": (replicas * part, replicas * part) for task, part in enumerate(ps_bytes)}
        return servers | {f"worker:{worker}": (model, model) for worker in range(replicas)}
    if system == "in-graph":
        client = {"chief:0": (replicas * (model + batch), replicas * model)}
        return client | {f"worker:{worker}": (model, model + batch) for worker in range(replicas)}
    return {system: (0, 0)}


def link_seconds(system: str, per_task: dict, megabits: float) -> float:
    """Seconds in which a step waits for the busiest link, which carries ``megabits`` a second each way at once.

    The ring sends and receives at the same time, and so does an asynchronous ps, which hands weights to one worker
    while another one's gradients come. The others first hand weights out and then gather gradients, so that both
    directions of the centre's link are waited for, one after the other.
    """
    rate = megabits * 1e6 / 8
    if system in ("ring", "ps-async"):
        return max(max(sent, received) for sent, received in per_task.values()) / rate
    return max(sent + received for sent, received in per_task.values()) / rate


def batch_bytes(images: int) -> int:
    """Bytes of a batch of MNIST as it is handed out: float32 pixels and int64 labels."""
    return images * (4 * PIXELS + 8)
