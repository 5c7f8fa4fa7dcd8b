"""Every fault, at every moment, under every launcher: does the job end, say why, and can it go on?

    python -m tests.parallel.fault_matrix                                     the whole matrix: over an hour
    python -m tests.parallel.fault_matrix --np 2 --launchers mpirun --kinds kill,hang --times save

Writes FOLDER/matrix.md and FOLDER/matrix.json after each cell, with what earlier calls found there (--folder); the
status is 1 where a cell failed. A cell is a job of 13 steps on the sample data with one fault, then the same command
without it. What is asked of each cell is in ``Matrix.run``; what each kind must look like is ``EXPECTED``.
docs/faults.md shows a measured table.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hvd_mnist import checkpoint
from hvd_mnist.errors import CheckpointError
from hvd_mnist.faults import KINDS, MOMENTS, WITHOUT_SENSE
from tests.parallel import ranks

LAUNCHERS = {"gloo": "horovodrun --gloo", "mpi": "horovodrun --mpi", "mpirun": "mpirun"}
STALL_TIMEOUT = 6  # seconds, of the jobs here
END_SECONDS = 30  # from the fault to the end of the launcher; a stall has STALL_TIMEOUT more
LAST_LINES = 40  # of the launcher's output name the first failing rank; horovodrun's own traceback takes 27 of them
STEPS = 13
# 4000 images in steps of 400: 10 steps an epoch. Saves after steps 4, 8, 12 and 13, evaluations after 10 and 13.
OPTIONS = ["--data", "sample", "--model", "mlp", "--global-batch", "400", "--steps", str(STEPS), "--threads", "1",
           "--checkpoint-every", "4", "--keep", "9", "--no-tensorboard", "--resume", "auto",
           "--stall-timeout", str(STALL_TIMEOUT)]  # fmt: skip
WHEN = {"start": "step=0", "step": "step=6", "save": "at=save,step=8", "evaluate": "at=evaluate,step=10"}
COLUMNS = {
    "start": "before step 1",
    "step": "in step 6",
    "save": "in the save after step 8",
    "evaluate": "in the evaluation after step 10",
}
PLACE = {
    "start": r"before the first step|in step 1\b",  # where a killed rank says nothing, the others may have gone on
    "step": r"(in|at|after) step 6\b",
    "save": r"in the save after step 8\b|before the save after step 8\b",
    "evaluate": r"in the evaluation after step 10\b",
}
NEWEST = {"start": (None,), "step": (4,), "save": (4, 8), "evaluate": (8,)}  # steps of the newest complete checkpoint


@dataclass(frozen=True)
class Expected:
    """How a job with one kind of fault ends: its status (horovodrun over Gloo: 1 for any failure), what it says."""

    statuses: tuple[int, ...]
    words: str
    anywhere_later: bool = False  # found only when the ranks meet next, so that another step may be named
    stalls: bool = False
    settings: str = ""


EXPECTED = {
    "raise": Expected((1,), r"RuntimeError: injected by"),
    "exit": Expected((7,), r"sys\.exit\(7\)", settings=",code=7"),
    "kill": Expected((137,), r"is gone|signal 9|[Cc]ode: 137"),
    "segv": Expected((139,), r"is gone|signal 11|[Cc]ode: 139"),
    "hang": Expected((201,), r"[Ss]tall|missing", stalls=True),
    "slow": Expected((0,), r"replicas proven equal", settings=",seconds=0.3"),
    "nan": Expected((11,), r"not finite|is nan"),
    "diverge": Expected((10,), r"replicas differ", anywhere_later=True),
    "disk-full": Expected((5,), r"step-0+8: No space left on device"),
    "skip-collective": Expected((201, 7), r"[Ss]tall|missing|met in different", anywhere_later=True, stalls=True),
    "data-error": Expected((4,), r"injected by --inject data-error"),
}


@dataclass(frozen=True)
class Cell:
    kind: str
    moment: str
    launcher: str
    np: int

    @property
    def rank(self) -> int:
        """Which rank: at a save the one that writes, where that makes a difference."""
        writes = self.moment == "save" and self.kind not in ("diverge", "skip-collective")
        return 0 if writes else self.np // 2

    @property
    def fault(self) -> str:
        return f"{self.kind}:rank={self.rank},{WHEN[self.moment]}{EXPECTED[self.kind].settings}"

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.moment}-{self.launcher}-{self.np}"


@dataclass
class Outcome:
    """What a cell did; it is green where ``wrong`` is empty."""

    cell: Cell
    status: int = -1
    seconds: float | None = None  # from the fault to the end of the launcher
    newest: int | None = None
    resumed: str = ""
    wrong: list[str] = field(default_factory=list)
    output: str = ""


@dataclass(frozen=True)
class Job:
    status: int
    lines: list[tuple[float, str]]  # (monotonic seconds, text)
    ended: float

    @property
    def text(self) -> str:
        return "\n".join(text for _, text in self.lines)


def start_job(launcher: str, np: int, folder: Path, *options: str, timeout: float = 300) -> Job:
    """``hvd-mnist train`` to its end, each line of output with its time."""
    command = [sys.executable, "-m", "hvd_mnist", "train", *OPTIONS, "--run-dir", str(folder), *options]
    process = subprocess.Popen(
        [*ranks.launcher_command(launcher, np), *command],
        env=ranks.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,
        cwd=ranks.ROOT,
    )
    lines: list[tuple[float, str]] = []

    def read():
        for line in process.stdout:
            lines.append((time.monotonic(), line.rstrip("\n")))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        process.wait(timeout)
        return Job(process.returncode, lines, time.monotonic())
    except subprocess.TimeoutExpired:
        return Job(124, lines, time.monotonic())
    finally:
        ranks.end_tree(process.pid)
        reader.join(10)


class Matrix:
    """Runs cells in one folder; what an undisturbed job ends with is made once a launcher and number of ranks."""

    def __init__(self, folder: Path, resume_all: bool = False):
        self.folder, self.resume_all = folder, resume_all
        self._references: dict[tuple[str, int], Path] = {}
        self._resumed: dict[tuple, str] = {}

    def run(self, cell: Cell) -> Outcome:
        """One cell: the fault, what it leaves, and the same command without it."""
        run, expected, outcome = self.folder / cell.name, EXPECTED[cell.kind], Outcome(cell)
        shutil.rmtree(run, ignore_errors=True)
        job = start_job(cell.launcher, cell.np, run, "--allow-faults", "--inject", cell.fault)
        outcome.status, outcome.output = job.status, job.text
        wrong = outcome.wrong
        begun = next((at for at, text in job.lines if f"injecting {cell.kind}" in text), None)
        if begun is None:
            wrong.append("the fault never happened")
            return outcome
        outcome.seconds = round(job.ended - begun, 1)
        limit = END_SECONDS + (STALL_TIMEOUT if expected.stalls else 0)
        if outcome.seconds > limit:
            wrong.append(f"ended after {outcome.seconds} s, expected at most {limit}")
        statuses = (1,) if cell.launcher == "gloo" and expected.statuses != (0,) else expected.statuses
        if (cell.kind, cell.moment, statuses) == ("raise", "save", (1,)) and cell.launcher != "gloo":
            statuses = (5,)  # whatever goes wrong in a save is an error of the checkpoint
        if job.status not in statuses:
            wrong.append(f"status {job.status}, expected {' or '.join(map(str, statuses))}")
        wrong += unsaid(job, cell)
        left = processes_left(run)
        if left:
            wrong.append(f"processes left: {left}")
        self._check_what_is_left(cell, run, outcome)
        return outcome

    def _check_what_is_left(self, cell: Cell, run: Path, outcome: Outcome) -> None:
        reference = self._reference(cell.launcher, cell.np)
        if cell.kind == "slow":
            outcome.newest, outcome.resumed = STEPS, "not needed"
            outcome.wrong += differs(run, reference, STEPS)
            return
        try:
            newest = checkpoint.latest(run / "checkpoints", notify=outcome.wrong.append)
        except CheckpointError as error:
            outcome.wrong.append(str(error))
            return
        outcome.newest = newest.step if newest else None
        allowed = NEWEST[cell.moment] if not EXPECTED[cell.kind].anywhere_later else (None, 4, 8, 10, 12)
        if outcome.newest not in allowed:
            outcome.wrong.append(f"newest checkpoint {outcome.newest}, expected {allowed}")
        if newest:
            outcome.wrong += differs(run, reference, newest.step)
        key = (cell.launcher, cell.np, outcome.newest)
        if key in self._resumed and not self.resume_all and not outcome.wrong:
            outcome.resumed = f"as {self._resumed[key]}"  # the same bits on disk go on in the same way
            return
        again = start_job(cell.launcher, cell.np, run)
        outcome.resumed = "yes"
        if again.status:
            outcome.wrong.append(f"resumed with status {again.status}: {again.text[-600:]}")
        else:
            outcome.wrong += differs(run, reference, STEPS)
            if newest and f"resuming from step-{newest.step:08d}" not in again.text:
                outcome.wrong.append("did not resume from the newest checkpoint")
        if not outcome.wrong:
            self._resumed[key] = cell.name

    def _reference(self, launcher: str, np: int) -> Path:
        key = (launcher, np)
        if key not in self._references:
            folder = self.folder / f"undisturbed-{launcher}-{np}"
            shutil.rmtree(folder, ignore_errors=True)
            job = start_job(launcher, np, folder)
            if job.status:
                raise RuntimeError(f"an undisturbed job of {np} ranks under {launcher} failed: {job.text[-3000:]}")
            self._references[key] = folder
        return self._references[key]


def unsaid(job: Job, cell: Cell) -> list[str]:
    """What the last lines fail to say: the rank, its host, the step, the error."""
    expected = EXPECTED[cell.kind]
    tail = "\n".join([text for _, text in job.lines if "injecting" not in text][-LAST_LINES:])
    wanted = {"error": expected.words}
    if cell.kind != "slow":
        wanted["rank and host"] = rf"rank {cell.rank}(,| on| \(process \d+ on) {re.escape(socket.gethostname())}\b"
        wanted["step"] = r"step \d+" if expected.anywhere_later else PLACE[cell.moment]
    return [f"the last lines do not say: {what}" for what, words in wanted.items() if not re.search(words, tail)]


def differs(run: Path, reference: Path, step: int) -> list[str]:
    """In which variable the checkpoints of one step differ, by their digests."""
    name = f"checkpoints/step-{step:08d}"
    verdicts = [checkpoint.verify(folder / name) for folder in (run, reference)]
    for folder, verdict in zip((run, reference), verdicts, strict=True):
        if not verdict.ok:
            return [f"{folder / name}: {verdict.reason}"]
    mine, undisturbed = (verdict.manifest.fingerprint for verdict in verdicts)
    changed = mine.difference(undisturbed) or mine.changed(undisturbed)
    return [f"step {step} is not bitwise that of an undisturbed job: {changed}"] if changed else []


def processes_left(run: Path, patience: float = 5) -> list[int]:
    """Processes with this run folder on their command line that do not end within ``patience`` seconds; ended here."""
    import psutil

    until = time.monotonic() + patience
    while True:
        left = [p for p in psutil.process_iter(["cmdline"]) if str(run) in (p.info["cmdline"] or [])]
        if not left or time.monotonic() > until:
            break
        time.sleep(0.1)
    for process in left:
        process.kill()
    return [process.pid for process in left]


def cells(kinds, moments, launchers, sizes) -> list[Cell]:
    """All cells that make sense; of those that do not, ``WITHOUT_SENSE`` has the reason."""
    return [
        Cell(kind, moment, launcher, np)
        for np in sizes
        for moment in moments
        for kind in kinds
        for launcher in launchers
        if (kind, moment) not in WITHOUT_SENSE
    ]


def markdown(outcomes: list[Outcome]) -> str:
    """One row a kind, one column a moment; there, for each launcher and number of ranks, status and seconds."""
    lines = ["| fault | " + " | ".join(COLUMNS.values()) + " |", "| --- |" + " --- |" * len(COLUMNS)]
    for kind in KINDS:
        told = [
            "no sense"
            if (kind, moment) in WITHOUT_SENSE
            else "<br>".join(shown(o) for o in outcomes if (o.cell.kind, o.cell.moment) == (kind, moment)) or "not run"
            for moment in MOMENTS
        ]
        lines.append(f"| `{kind}` | " + " | ".join(told) + " |")
    failed = sum(bool(outcome.wrong) for outcome in outcomes)
    return "\n".join(lines) + f"\n\n{len(outcomes)} cells run, {len(outcomes) - failed} green.\n"


def shown(outcome: Outcome) -> str:
    """``mpirun x2: 137, 2 s``, and what was wrong."""
    cell, wrong = outcome.cell, "; ".join(outcome.wrong)
    seconds = "?" if outcome.seconds is None else f"{outcome.seconds:.0f}"
    return f"{cell.launcher} x{cell.np}: {outcome.status}, {seconds} s" + (f" **{wrong}**" if wrong else "")


def recorded(folder: Path) -> dict[Cell, Outcome]:
    """What earlier calls found in the same folder."""
    path = folder / "matrix.json"
    found = json.loads(path.read_text()) if path.exists() else []
    outcomes = [Outcome(**{**each, "cell": Cell(**each["cell"])}) for each in found]
    return {outcome.cell: outcome for outcome in outcomes}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.parallel.fault_matrix", description=__doc__.split("\n")[0])
    several = {"kinds": list(KINDS), "times": list(MOMENTS), "launchers": list(LAUNCHERS), "np": [2, 4]}
    for name, values in several.items():
        kind = int if name == "np" else str
        parser.add_argument(
            f"--{name}",
            default=values,
            type=lambda text, kind=kind: [kind(word) for word in text.split(",")],
            help=f"some of {','.join(map(str, values))}",
        )
    parser.add_argument("--folder", type=Path, help="where runs, matrix.md and matrix.json go; default a new one")
    parser.add_argument("--resume-all", action="store_true", help="resume even where an equal checkpoint has resumed")
    options = parser.parse_args(argv)
    for name, values in several.items():
        unknown = [word for word in getattr(options, name) if word not in values]
        if unknown:
            parser.error(f"--{name} {unknown[0]}: expected some of {', '.join(map(str, values))}")
    folder = options.folder or Path(tempfile.mkdtemp(prefix="fault-matrix-"))
    folder.mkdir(parents=True, exist_ok=True)
    matrix, found = Matrix(folder, options.resume_all), recorded(folder)
    wanted = cells(options.kinds, options.times, options.launchers, options.np)
    for cell in wanted:
        outcome = found[cell] = matrix.run(cell)
        verdict = "wrong" if outcome.wrong else "green"
        print(f"{verdict}  {cell.kind} {cell.moment}  {shown(outcome)}  resumed {outcome.resumed}", flush=True)
        (folder / "matrix.md").write_text(markdown(list(found.values())))
        (folder / "matrix.json").write_text(json.dumps([asdict(each) for each in found.values()], indent=1))
    failed = sum(bool(found[cell].wrong) for cell in wanted)
    print(f"{len(wanted)} cells, {failed} failed: {folder / 'matrix.md'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
