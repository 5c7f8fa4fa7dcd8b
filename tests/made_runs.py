"""Run folders made by hand, for tests of what reads them: no training, any number, any fault."""

from __future__ import annotations

import base64
import json
import math
import re
import zlib
from pathlib import Path

KNOBS = {
    "data": ("sample", "flag"), "model": ("mlp", "flag"), "epochs": (2, "flag"), "batch_size": (128, "default"),
    "learning_rate": (0.0042, "environment"), "schedule": ("cosine", "file"), "inject": ([], "default"),
}  # fmt: skip


def png(shade: int = 200) -> str:
    """A 28 x 28 grey PNG, as base64."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    rows = b"".join(b"\0" + bytes(shade if 8 < x < 20 and 4 < y < 24 else 0 for x in range(28)) for y in range(28))
    head = (28).to_bytes(4, "big") * 2 + bytes([8, 0, 0, 0, 0])
    whole = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return base64.b64encode(whole).decode()


def made_run(
    folder: Path, *, ranks: int = 2, steps: int = 60, finished: bool = True, digits: bool = False, **knobs
) -> Path:
    """A run folder as rank 0 would leave it."""
    (folder / "logs").mkdir(parents=True)
    values = KNOBS | {name: (value, "flag") for name, value in knobs.items()}
    write(folder / "config.json", {
        "schema": 1, "command": ["hvd-mnist", "train", "--run-dir", str(folder)],
        "knobs": {name: {"value": value, "source": source} for name, (value, source) in values.items()},
        "effective": {"job": f"{ranks} ranks on 1 host, Gloo", "steps": f"{steps} (2 epochs of {steps // 2})"},
        "versions": {"hvd_mnist": "0.1.0", "horovod": "0.28.1", "python": "3.11.7"},
        "environment": {"HOROVOD_CYCLE_TIME": "5"},
    })  # fmt: skip
    rate = values["learning_rate"][0]
    lines = []
    for step in range(2, steps + 1, 2):
        loss = 2.3 * math.exp(-step * rate * 10)
        values_of_step = {"loss": loss, "accuracy": 1 - loss / 2.4, "learning_rate": rate * (1 - step / steps / 2)}
        pace = {"images_per_second": 4000.0 * ranks + 50 * (step % 7), "communication": 0.1 + 0.01 * (step % 5)}
        lines.append(line("step", step, epoch=0, **values_of_step, **pace))
        if step % 20 == 0:
            lines.append(line("evaluation", step, loss=loss * 0.9, accuracy=1 - loss / 2.6, correct=900, examples=1000))
    write_lines(folder / "metrics.jsonl", lines)
    if finished:
        write(folder / "summary.json", summary(ranks, steps, lines))
    save = folder / "checkpoints" / f"step-{steps:08d}"
    save.mkdir(parents=True)
    metric = {"name": "test_accuracy", "mode": "max", "value": 0.91}
    files = {"model.keras": {"size": 977526}}
    write(
        save / "manifest.json",
        {"step": steps, "saved_at": "2026-11-29T22:50:58+00:00", "files": files, "metric": metric},
    )
    write(folder / "checkpoints" / "best.json", {"checkpoint": save.name})
    for rank in range(ranks):
        text = f"2026-11-29 22:50:49 rank {rank} of {ranks}, local rank {rank}, host vm, pid {100 + rank}\n"
        (folder / "logs" / f"rank-{rank}.log").write_text(text)
    if digits:
        write(folder / "digits.json", confusions(save.name))
    return folder


def confusions(checkpoint: str) -> dict:
    worst = [
        {"index": n, "label": str(n), "predicted": str(n + 1), "probability": 0.99 - n / 100, "png": png(250 - 20 * n)}
        for n in range(8)
    ]
    return {
        "schema": 1,
        "checkpoint": checkpoint,
        "data": "sample",
        "examples": 1000,
        "wrong": 90,
        "labels": [str(n) for n in range(10)],
        "confusion": [[91 if row == column else (row + column) % 3 for column in range(10)] for row in range(10)],
        "worst": worst,
    }


def line(kind: str, step: int, **values) -> str:
    return json.dumps({"kind": kind, "step": step, "time": 1_795_992_650.0 + step / 10, **values})


def write_lines(path: Path, lines: list[str]) -> None:
    path.write_text("".join(each + "\n" for each in lines))


def write(path: Path, value) -> None:
    path.write_text(json.dumps(value))


def summary(ranks: int, steps: int, lines: list[str]) -> dict:
    last = json.loads([each for each in lines if '"evaluation"' in each][-1])
    traffic = {"sockets_sent": 9798854, "sockets_received": 9783331, "interfaces_sent": 0, "interfaces_received": 0}
    each = {"host": "vm", "gpu": None, "threads": 1, "cpu_seconds": 2.4, "peak_memory_mib": 585.2, "traffic": traffic}
    return {
        "schema": 1, "world_size": ranks, "launcher": "horovodrun-gloo", "backend": "Gloo", "data": "sample",
        "data_is_sample": True, "class_names": [], "data_sha256": {"train_images": "a" * 64}, "model": "mlp",
        "parameters": 79510,
        "epochs": 2.0, "steps": steps, "resumed_from_step": 0, "global_batch": 128 * ranks, "learning_rate_peak": 0.006,
        "test_accuracy": last["accuracy"], "test_correct": 865, "test_examples": 1000, "test_loss": last["loss"],
        "target_accuracy": None, "target_reached": None, "images_per_second": 1319.2, "train_seconds": 7.98,
        "cpu_seconds": 4.81, "start_seconds": 20.83, "ranks": [{"rank": rank, **each} for rank in range(ranks)],
        "proof": {"held": True, "first_step_gradients": True, "comparisons": 5, "tolerance": 0.0, "seconds": 0.283},
        "versions": {"hvd_mnist": "0.1.0"},
    }  # fmt: skip


# --- the schema, as docs/run-folder.md has it ------------------------------------------------------------------


def documented(chapter: str) -> dict[str, set[str]]:
    """First cell -> names in backticks of the last cell, of the table in one chapter; cells with several names too."""
    text = (Path(__file__).parents[1] / "docs" / "run-folder.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]+`) \|(.*)\|$", text.split(f"## {chapter}\n")[1].split("\n## ")[0], re.M)
    return {
        name: set(re.findall(r"`(\w+)`", rest.split("|")[-1]))
        for key, rest in rows
        for name in key.strip("`").split("`, `")
    }


def assert_documented(folder: Path) -> None:
    """Every kind of line and every key of a run folder stands in docs/run-folder.md, and none is missing."""
    kinds = documented("metrics.jsonl")
    for text in (folder / "metrics.jsonl").read_text().splitlines():
        found = json.loads(text)
        values = set(found) - {"kind", "step", "time"}
        expected = kinds[found["kind"]] - ({"world_size"} if found["kind"] == "step" else set())
        assert values == expected, f"{found['kind']}: {values ^ expected}"
    digits = json.loads((folder / "digits.json").read_text())
    assert set(digits) == set(documented("digits.json"))
    known = set(documented("summary.json"))
    known -= {"resets", "changes", "autotune"}  # of elastic runs, and of --autotune
    found = set(json.loads((folder / "summary.json").read_text())) - {"autotune"}
    assert found == known, found ^ known
    assert set(json.loads((folder / "config.json").read_text())) == {
        "schema", "command", "knobs", "effective", "versions", "environment",
    }  # fmt: skip
