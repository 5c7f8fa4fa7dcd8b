"""``hvd-mnist checkpoint list|verify|show|export``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from hvd_mnist.errors import CheckpointError

_PATH = click.Path(path_type=Path)


@click.group()
def checkpoint():
    """Look at the checkpoints of a run, check them, and export one for serving.

    RUN is a run folder (or its checkpoints folder). CHECKPOINT is a run folder, of which the best is taken, else the
    newest, or one step-NNNNNNNN folder. Only `export` needs TensorFlow.
    """


@checkpoint.command("list")
@click.argument("run", type=_PATH)
@click.option("--json", "as_json", is_flag=True, help="One JSON array instead of the table.")
def list_(run: Path, as_json: bool):
    """The checkpoints in RUN, newest first (sizes are checked; `verify` checks every byte)."""
    from hvd_mnist.checkpoint import best

    rows, folder = _verdicts(run, hashes=False)
    chosen = best(folder)
    if as_json:
        click.echo(json.dumps([_as_json(path, verdict, chosen) for path, verdict in rows], indent=1))
        return
    from rich.table import Table

    table = Table("checkpoint", "step", "saved (UTC)", "metric", "size", "state", box=None, pad_edge=False)
    for path, verdict in rows:
        manifest = verdict.manifest
        metric = manifest and manifest.metric
        value = "" if not metric else "not finite" if metric.value is None else f"{metric.name} {metric.value:.6g}"
        mark = " (best)" if chosen and chosen.path == path else ""
        table.add_row(
            path.name,
            str(manifest.step) if manifest else "",
            manifest.saved_at[:19] if manifest else "",
            value + mark,
            f"{manifest.size / 1e6:.1f} MB" if manifest else "",
            "complete" if verdict.ok else f"BROKEN: {verdict.reason}",
        )
    _print(table)


@checkpoint.command()
@click.argument("run", type=_PATH)
def verify(run: Path):
    """Read every byte of every checkpoint in RUN (or of one checkpoint). Status 5 if one is broken."""
    rows, _ = _verdicts(run, hashes=True)
    broken = [path for path, verdict in rows if not verdict.ok]
    for path, verdict in rows:
        size = f"{verdict.manifest.size / 1e6:.1f} MB, sha256 right" if verdict.ok else verdict.reason
        click.echo(f"{'ok    ' if verdict.ok else 'BROKEN'}  {path}  {size}")
    if broken:
        raise CheckpointError(f"{len(broken)} of {len(rows)} checkpoints broken, first {broken[0]}")


@checkpoint.command()
@click.argument("checkpoint", type=_PATH)
@click.option("--json", "as_json", is_flag=True, help="Everything as one JSON object.")
def show(checkpoint: Path, as_json: bool):
    """What CHECKPOINT holds: the trainer's state, versions, variables."""
    from hvd_mnist.checkpoint import find, load_state

    found = find(checkpoint)
    manifest, state = found.manifest, load_state(found.path)
    if as_json:
        click.echo(json.dumps({"path": str(found.path), "state": state, "manifest": asdict(manifest)}, indent=1))
        return
    fingerprint = manifest.fingerprint
    click.echo(f"{found.path}: step {found.step}, saved {manifest.saved_at}, {manifest.size / 1e6:.1f} MB, complete")
    click.echo("versions: " + ", ".join(f"{name} {version}" for name, version in manifest.versions.items()))
    if manifest.metric:
        click.echo(f"metric: {manifest.metric.name} = {manifest.metric.value} (best is {manifest.metric.mode})")
    click.echo("state:")
    for key, value in state.items():
        click.echo(f"  {json.dumps(key)[1:-1]}: {json.dumps(value)}")
    click.echo(f"optimizer: {fingerprint.optimizer or 'none'}, {len(fingerprint.slots)} variables")
    click.echo(f"model: {len(fingerprint.weights)} weights, {len(fingerprint.seeds)} seed generators")
    for variable in fingerprint.weights:
        click.echo(f"  {variable}")


@checkpoint.command()
@click.argument("checkpoint", type=_PATH)
@click.argument("out", type=_PATH)
def export(checkpoint: Path, out: Path):
    """Write CHECKPOINT's model for serving to OUT: NAME.keras, or a SavedModel folder under any other name.

    No optimizer, no trace of Horovod; checked by running it in a process that cannot import Horovod.
    """
    from hvd_mnist.checkpoint import export as export_model

    done = export_model(checkpoint, out)
    size = f"{done.bytes / 1e6:.1f} MB"
    click.echo(f"{done.path}: {size}, loads without Horovod, largest difference in outputs {done.difference:g}")


def _verdicts(run: Path, hashes: bool):
    """(path, verdict) of each checkpoint in a run folder, or of the one checkpoint that was named; and its folder."""
    from hvd_mnist.checkpoint import candidates
    from hvd_mnist.checkpoint import verify as verify_one
    from hvd_mnist.checkpoint.manifest import STEP_FOLDER
    from hvd_mnist.checkpoint.read import checkpoints_folder

    if not run.is_dir():
        raise CheckpointError(f"no run folder at {run}: no such folder")
    if STEP_FOLDER.fullmatch(run.name):
        return [(run, verify_one(run, hashes=hashes))], run.parent
    folder = checkpoints_folder(run)
    rows = [(one.path, verify_one(one.path, hashes=hashes)) for one in candidates(folder)]
    if not rows:
        raise CheckpointError(f"no checkpoint in {folder}: expected folders step-NNNNNNNN")
    return rows, folder


def _as_json(path: Path, verdict, chosen) -> dict:
    manifest = verdict.manifest
    return {
        "path": str(path),
        "complete": verdict.ok,
        "reason": verdict.reason,
        "best": bool(chosen and chosen.path == path),
        "step": manifest.step if manifest else None,
        "saved_at": manifest.saved_at if manifest else None,
        "bytes": manifest.size if manifest else None,
        "metric": asdict(manifest.metric) if manifest and manifest.metric else None,
    }


def _print(table) -> None:
    from rich.console import Console

    console = Console(markup=False)
    # A pipe gets whole lines: nothing folded at 80 columns.
    (console if console.is_terminal else Console(markup=False, width=240)).print(table)
