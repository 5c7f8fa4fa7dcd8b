"""PyTorch's DistributedDataParallel on the network, batch and cores of ``bench.overhead``: somebody else's ring.

    TORCH/bin/python -m torch.distributed.run --nproc-per-node 2 torch_ddp.py --blocks 8 --steps 20

Needs an environment with PyTorch (requirements/torch.txt) and nothing of this package: it is run as a file. Rank 0
prints one JSON object: CPU and wall milliseconds a step and rank, medians over blocks and ranks, as bench.overhead.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20, help="steps in a block")
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--channels-last", action="store_true", help="the layout of TensorFlow's images")
    asked = parser.parse_args()
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(asked.threads)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    images = torch.rand(asked.steps * asked.batch, 1, 28, 28)
    labels = torch.randint(0, 10, (asked.steps * asked.batch,))
    torch.manual_seed(1)
    network = nn.Sequential(  # models._cnn, layer by layer: 1 199 882 parameters
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
        nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10),
    )  # fmt: skip
    assert sum(parameter.numel() for parameter in network.parameters()) == 1_199_882
    if asked.channels_last:
        network, images = (each.to(memory_format=torch.channels_last) for each in (network, images))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    loss_of = nn.CrossEntropyLoss()

    def run() -> None:
        for start in range(0, len(images), asked.batch):
            x, y = images[start : start + asked.batch], labels[start : start + asked.batch]
            optimizer.zero_grad(set_to_none=True)
            logits = model(x)
            loss = loss_of(logits, y)
            loss.backward()
            optimizer.step()
            float(loss), float((logits.argmax(-1) == y).float().mean())  # as the other side, which knows both

    run()
    cpu, wall = [], []
    for _ in range(asked.blocks):
        dist.barrier()
        begun, spent = time.perf_counter(), time.process_time()
        run()
        cpu.append((time.process_time() - spent) / asked.steps)
        wall.append((time.perf_counter() - begun) / asked.steps)
    told: list = [None] * size
    dist.all_gather_object(told, (cpu, wall))
    if rank == 0:
        found = {
            clock: round(1000 * statistics.median(value for each in told for value in each[number]), 3)
            for number, clock in enumerate(("cpu_ms", "wall_ms"))
        }
        print(json.dumps({"torch": torch.__version__, "ranks": size, "channels_last": asked.channels_last, **found}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
