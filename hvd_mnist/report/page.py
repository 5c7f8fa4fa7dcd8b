"""The report: one HTML file with everything in it. No script, no network, no server.

What is shown is worked out here as plain rows; ``templates/report.html.j2`` lays it out and escapes every text.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hvd_mnist import __version__
from hvd_mnist.errors import DataError, EnvironmentUnfit
from hvd_mnist.report import chart, logs
from hvd_mnist.report.run import Run, read

TEMPLATE = Path(__file__).with_name("templates")
_SECRET = re.compile(r"(key|token|secret|passw|credential|auth)", re.IGNORECASE)
_IN_A_URL = re.compile(r"(\w+://)[^/@\s]+@")


PartsOf = Callable[[Path], "list[dict] | None"]


def write(
    folders: Sequence[str | Path], out: str | Path | None = None, parts_of: PartsOf = lambda folder: None
) -> Path:
    """Write the report of one or more runs; where it went.

    Args:
        folders: run folders; finished runs or ones that go on.
        out: the file; default report.html in the first folder.
        parts_of: gives for a run folder where its steps' time went, by rank (``bench.step_parts.by_rank``), or None.

    Raises:
        DataError: a folder is none of a run, a file in it cannot be understood, or the report cannot be written.
        EnvironmentUnfit: jinja2 is not installed.
    """
    runs = [read(folder, name) for folder, name in zip(folders, names(folders), strict=True)]
    path = Path(out) if out is not None else runs[0].folder / "report.html"
    text = render(runs, path.parent, parts_of)
    temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}", "--output FILE, in a folder that is yours") from None
    return path


def names(folders: Sequence[str | Path]) -> list[str]:
    """The folders' own names; whole paths where two are the same."""
    own = [Path(folder).resolve().name for folder in folders]
    return own if len(set(own)) == len(own) else [str(folder) for folder in folders]


def render(runs: Sequence[Run], place: Path, parts_of: PartsOf = lambda folder: None) -> str:
    """The page as text. ``place`` is the folder where it will lie: links are relative to it."""
    try:
        import jinja2
    except ImportError:
        raise EnvironmentUnfit("the report needs the package jinja2", "pip install jinja2") from None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATE),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"shown": shown, "size": in_bytes, "number": number, "quoted": shlex.quote}
    return environment.get_template("report.html.j2").render(
        runs=[_about(run, place, index, parts_of(run.folder)) for index, run in enumerate(runs)],
        charts=curves(runs),
        settings=compared([_knobs(run) for run in runs]),
        effective=compared([dict(run.config.get("effective") or {}) for run in runs]),
        software=compared([_software(run) for run in runs]),
        size=chart,
        colours=chart.COLOURS,
        made=time.strftime("%Y-%m-%d %H:%M"),
        version=__version__,
    )


# -- What the tables hold -----------------------------------------------------------------------------------------


def compared(tables: Sequence[dict[str, Any]]) -> list[dict]:
    """Rows (name, one cell a run, differs) of several tables that have mostly the same keys. Pure."""
    keys = list(dict.fromkeys(key for table in tables for key in table))
    rows = []
    for key in keys:
        cells = [table.get(key, MISSING) for table in tables]
        rows.append({"name": key, "cells": cells, "differs": any(cell != cells[0] for cell in cells)})
    return rows


MISSING = "\N{EM DASH}"


def _knobs(run: Run) -> dict[str, tuple[str, str]]:
    """(value, source) of each setting."""
    found = {}
    for name, knob in (run.config.get("knobs") or {}).items():
        if isinstance(knob, dict):
            found[name] = (without_secrets(name, shown(knob.get("value"))), str(knob.get("source", "not recorded")))
    return found


def _software(run: Run) -> dict[str, str]:
    recorded = run.config.get("versions") or (run.summary or {}).get("versions") or {}
    variables = run.config.get("environment") or {}
    return {str(name): str(value) for name, value in recorded.items()} | {
        name: without_secrets(name, str(value)) for name, value in variables.items()
    }


def without_secrets(name: str, value: str) -> str:
    """``value`` without what only its owner should read: all of it where the name says so, logins in addresses."""
    return "(hidden)" if _SECRET.search(name) else _IN_A_URL.sub(r"\1(hidden)@", value)


def command_line(words: Sequence[str]) -> str:
    """What was typed, the program by its name; what is behind an option that sounds like a secret is hidden. Pure."""
    told, hide = [], False
    for place, word in enumerate(map(str, words)):
        if place == 0:
            word = "hvd-mnist" if word.endswith("hvd_mnist/__main__.py") else Path(word).name
        name, equals, value = word.partition("=")
        secret = name.startswith("-") and bool(_SECRET.search(name))
        told.append("(hidden)" if hide else f"{name}=(hidden)" if secret and equals else without_secrets("", word))
        hide = secret and not equals
    return " ".join(word if word == "(hidden)" else shlex.quote(word) for word in told)


# Keys of summary.json that the page shows; older runs and other systems lack some of them.
SHOWN_OF_A_SUMMARY = (
    "backend", "cpu_seconds", "data", "data_is_sample", "data_sha256", "epochs", "images_per_second", "launcher",
    "model", "parameters", "start_seconds", "steps", "target_accuracy", "target_reached", "test_accuracy",
    "test_correct", "test_examples", "train_seconds", "world_size",
)  # fmt: skip


def _about(run: Run, place: Path, index: int, parts: list[dict] | None) -> dict:
    summary = run.summary or {}
    steps = summary.get("steps")
    return {
        "name": run.name,
        "index": index,
        "summary": dict.fromkeys(SHOWN_OF_A_SUMMARY) | summary,
        "finished": run.summary is not None,
        "notes": run.notes,
        "command": command_line(run.config.get("command") or []),
        "effective": run.config.get("effective") or {},
        "last_step": max((line["step"] for line in run.lines), default=None),
        "evaluations": run.of_kind("evaluation"),
        "resets": run.of_kind("reset"),
        "ranks": [_rank(rank, summary) for rank in summary.get("ranks") or []],
        "sent_per_step": _sent_per_step(summary, steps),
        "parts": parts,
        "communication": communication_share(parts) if parts else None,
        "communication_of_root": _mean(line.get("communication") for line in run.of_kind("step")),
        "proof": summary.get("proof"),
        "checkpoints": run.checkpoints,
        "notices": logs.notices(run.folder / "logs"),
        "digits": run.digits,
        "folder": str(run.folder),
        "links": _links(run.folder, place),
    }


def _rank(rank: dict, summary: dict) -> dict:
    """A rank's row; its throughput is its even share of the images over the CPU seconds that it took."""
    made = (summary.get("steps") or 0) - (summary.get("resumed_from_step") or 0)
    images = made * (summary.get("global_batch") or 0) / max(1, summary.get("world_size") or 1)
    cpu = rank.get("cpu_seconds")
    even = "resumed_from_step" in summary and len(summary.get("ranks") or []) == summary.get("world_size")
    return {
        **rank,
        "traffic": rank.get("traffic") or {},
        "images_per_cpu_second": images / cpu if even and cpu and images else None,
    }


def communication_share(parts: Sequence[dict]) -> float:
    """Of a step's time, mean over the ranks: the exchange itself and the wait for slower ranks. Pure."""
    means = [row["mean_ms"] for row in parts]
    return sum((mean["communication"] + mean["wait"]) / mean["step"] for mean in means) / len(means)


def _mean(values) -> float | None:
    known = [value for value in values if isinstance(value, (int, float))]
    return sum(known) / len(known) if known else None


def _sent_per_step(summary: dict, steps) -> float | None:
    made = (steps or 0) - (summary.get("resumed_from_step") or 0)
    sent = _mean((rank.get("traffic") or {}).get("sockets_sent") for rank in summary.get("ranks") or [])
    return sent / made if sent is not None and made > 0 else None


def _links(folder: Path, place: Path) -> list[tuple[str, str]]:
    """(text, relative address) of what lies beside the report."""
    wanted = ("config.json", "metrics.jsonl", "summary.json", "step-times.json", "tensorboard", "checkpoints")
    there = [folder / name for name in wanted] + sorted((folder / "logs").glob("*"))[:64]
    return [
        (str(path.relative_to(folder)), _address(os.path.relpath(path.resolve(), place.resolve())))
        for path in there
        if path.exists()
    ]


def _address(path: str) -> str:
    from urllib.parse import quote

    return "./" + quote(path)


# -- Curves -------------------------------------------------------------------------------------------------------


def curves(runs: Sequence[Run]) -> list[chart.Chart]:
    """Loss, accuracy, rate, speed and communication of all runs against the step."""

    def points(run, key, *kinds, factor=1.0):
        rows = [line for line in run.lines if line["kind"] in kinds and isinstance(line.get(key), (int, float))]
        return sorted((row["step"], row[key] * factor) for row in rows)

    def both(key, factor=1.0):
        training, test = [], []
        for index, run in enumerate(runs):
            training.append(
                chart.Series(f"{run.name}, training", points(run, key, "step", "epoch", factor=factor), index)
            )
            test.append(chart.Series(f"{run.name}, test", points(run, key, "evaluation", factor=factor), index, True))
        return training + test

    def steps(key, factor=1.0):
        return [
            chart.Series(run.name, points(run, key, "step", factor=factor), index, True)
            for index, run in enumerate(runs)
        ]

    drawn = [
        chart.chart("Loss", "step", both("loss"), log=True),
        chart.chart("Accuracy, %", "step", both("accuracy", 100.0)),
        chart.chart("Learning rate", "step", steps("learning_rate"), zero=True),
        chart.chart("Images per second, all ranks", "step", steps("images_per_second"), zero=True),
        chart.chart("Time in communication, % (rank 0)", "step", steps("communication", 100.0), zero=True),
    ]
    return [each for each in drawn if each is not None]


# -- Texts --------------------------------------------------------------------------------------------------------


def shown(value: Any) -> str:
    """A value of a setting as people write it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    return str(value)


def in_bytes(value: Any) -> str:
    """12345678 is 12.3 MB; "not recorded" for None."""
    if not isinstance(value, (int, float)):
        return "not recorded"
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} B"


def number(value: Any, digits: int = 3) -> str:
    """A number with so many digits that count; whole ones with a thin space between thousands. Not recorded: None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "not recorded"
    whole = isinstance(value, int) or abs(value) >= 10 ** (digits - 1)
    return (f"{value:,.0f}" if whole else f"{value:.{digits}g}").replace(",", "\N{NARROW NO-BREAK SPACE}")
