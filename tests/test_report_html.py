"""``hvd-mnist report``: what is in the page, what is never in it, and what it says of folders that are half there."""

import html.parser
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hvd_mnist.bench import step_parts
from hvd_mnist.commands.report import report
from hvd_mnist.errors import DataError, UsageError
from hvd_mnist.report import chart, page
from hvd_mnist.report.run import read, read_metrics
from hvd_mnist.run_summary import RECORDED_VARIABLES, recorded_environment
from tests.made_runs import assert_documented, line, made_run, write, write_lines

ROOT = Path(__file__).resolve().parents[1]
SECTIONS = ("result", "curves", "ranks", "proof", "settings", "checkpoints", "digits", "warnings", "environment")


class Parsed(html.parser.HTMLParser):
    """Tags with their attributes, and the text outside of styles."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self._open = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._open.append(tag)

    def handle_endtag(self, tag):
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data):
        if "style" not in self._open:
            self.texts.append(data)

    @property
    def text(self):
        return " ".join("".join(self.texts).split())


def made(*folders, **more) -> Parsed:
    return Parsed(page.write(folders, **more).read_text(encoding="utf-8"))


# --- what is in it -------------------------------------------------------------------------------------------


def test_one_run_has_all_parts(tmp_path):
    folder = made_run(tmp_path / "run", digits=True)
    found = made(folder)
    assert (folder / "report.html").is_file() and not list(folder.glob(".tmp-*"))
    ids = {attributes.get("id") for _, attributes in found.tags}
    assert set(SECTIONS) <= ids
    text = found.text
    for words in ("2, Gloo, started by horovodrun-gloo", "equal to the last bit", "step-00000060 (best)", "978 kB",
                  "HOROVOD_CYCLE_TIME", "None in the logs", "vm", "585.2 MiB", "9.8 MB",
                  "12 % of rank 0's time", "included; 163 kB", "0 taken for 1, 99 %", "79 510 parameters"):  # fmt: skip
        assert words in text, words
    for source in ("flag", "environment", "file", "default"):
        assert re.search(rf"\b{source}\b", text), source
    pictures = [attributes for tag, attributes in found.tags if tag == "svg" and attributes.get("role") == "img"]
    assert len(pictures) == 5
    named = {attributes.get("id") for tag, attributes in found.tags if tag in ("title", "desc")}
    assert all(set(picture["aria-labelledby"].split()) <= named for picture in pictures)
    assert all(attributes.get("alt") for tag, attributes in found.tags if tag == "img")


def test_it_is_complete_in_itself(tmp_path):
    found = made(made_run(tmp_path / "run", digits=True))
    assert not [tag for tag, _ in found.tags if tag in ("script", "iframe", "object", "embed", "base", "form")]
    for tag, attributes in found.tags:
        assert not [name for name in attributes if name.startswith("on")], "a handler"
        for name in ("src", "href", "action", "srcset"):
            address = attributes.get(name)
            local = address is None or address.startswith(("./", "#", "data:"))
            assert local, f"{tag} {name}={address}"
    raw = (tmp_path / "run" / "report.html").read_text()
    assert "http:" not in raw and "https:" not in raw and "@import" not in raw and "url(" not in raw
    assert "default-src 'none'" in raw and "prefers-color-scheme: dark" in raw and "width=device-width" in raw


def test_links_lead_to_files_wherever_the_report_lies(tmp_path):
    folder, elsewhere = made_run(tmp_path / "a run & more"), tmp_path / "out"
    elsewhere.mkdir()
    for out in (None, elsewhere / "r.html"):
        path = page.write([folder], out)
        links = [attributes["href"] for tag, attributes in Parsed(path.read_text()).tags if tag == "a"]
        files = [link for link in links if link.startswith("./")]
        assert len(files) >= 6
        from urllib.parse import unquote

        assert all((path.parent / unquote(link)).exists() for link in files)


def test_several_runs_side_by_side(tmp_path):
    one, two = made_run(tmp_path / "one"), made_run(tmp_path / "two", ranks=4, learning_rate=0.008)
    found = made(one, two)
    assert (one / "report.html").is_file() and not (two / "report.html").exists()
    assert "1 of 7 settings differ" in found.text
    marked = [attributes for tag, attributes in found.tags if tag == "tr" and attributes.get("class") == "differs"]
    assert len(marked) >= 2 + 1  # the rate, in both tables, and the job
    assert "0.0042 environment" in found.text and "0.008 flag" in found.text
    lines = [
        attributes["class"] for tag, attributes in found.tags if tag == "g" and "line" in attributes.get("class", "")
    ]
    assert any("r0" in each for each in lines) and any("r1" in each for each in lines)
    dashes = re.findall(r"\.r(\d) path \{ stroke-dasharray", (one / "report.html").read_text())
    assert set(dashes) == {"1", "2", "3", "4", "5"}, "colour is not the only difference"


def test_runs_of_one_name_are_told_apart(tmp_path):
    assert page.names([tmp_path / "a" / "run", tmp_path / "b" / "run"]) == [
        str(tmp_path / "a" / "run"),
        str(tmp_path / "b" / "run"),
    ]
    assert page.names([tmp_path / "a", tmp_path / "b"]) == ["a", "b"]


def test_warnings_of_the_logs_are_explained_and_folded(tmp_path):
    folder = made_run(tmp_path / "run")
    stall = (
        "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting"
    )
    for rank in (0, 1):
        with (folder / "logs" / f"rank-{rank}.log").open("a") as log:
            log.write(f"2026-11-29 22:51:00 {stall}\n2026-11-29 22:51:09 WARNING: \x1b[2Jodd\n")
    found = made(folder)
    assert found.text.count(stall) == 1 and "rank-0.log, rank-1.log, 2 times" in found.text
    assert "they are slow, dead, hang" in found.text and "\x1b" not in found.text


# --- what is never in it -------------------------------------------------------------------------------------


def test_a_name_with_a_script_does_not_become_one(tmp_path):
    evil = "<script>alert(1)</script>"
    folder = made_run(
        tmp_path / evil.replace("/", "\N{DIVISION SLASH}"), model=evil, data='"><img src=x onerror=alert(1)>'
    )
    with (folder / "logs" / "rank-0.log").open("a") as log:
        log.write(f"error: {evil}\n")
    summary = json.loads((folder / "summary.json").read_text())
    write(folder / "summary.json", summary | {"data": evil, "backend": evil})
    write(folder / "digits.json", {"checkpoint": evil, "data": evil, "examples": 1, "wrong": 1, "labels": [evil],
                                   "confusion": [[1]], "worst": [{"label": evil, "predicted": evil, "probability": 1.0,
                                                                  "png": '"><script>'}]})  # fmt: skip
    found = made(folder)
    assert "script" not in [tag for tag, _ in found.tags] and evil in found.text
    assert not [attributes for _, attributes in found.tags if "onerror" in attributes]


def test_secrets_are_not_shown(tmp_path):
    folder = made_run(tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    config["command"] = ["train.py", "--api-key", "s3cret-a", "--token=s3cret-b", "--data", "ftp://me:s3cret-c@host/x"]
    config["knobs"]["auth_token"] = {"value": "s3cret-d", "source": "environment"}
    config["environment"] = {"MY_PASSWORD": "s3cret-e", "NCCL_ALGO": "Ring"}
    write(folder / "config.json", config)
    raw = page.write([folder]).read_text()
    assert "s3cret" not in raw and "(hidden)" in raw and "Ring" in raw


def test_the_environment_is_recorded_by_name_alone():
    environ = {"AWS_SECRET_ACCESS_KEY": "x", "HOROVOD_CYCLE_TIME": "5", "_HOROVOD_SECRET_KEY": "y", "PATH": "/bin"}
    assert recorded_environment(environ) == {"HOROVOD_CYCLE_TIME": "5"}
    assert not [name for name in RECORDED_VARIABLES if page._SECRET.search(name)]


def test_the_made_runs_are_like_real_ones(tmp_path):
    """tests/parallel/test_training.py holds a real run folder to the same schema."""
    assert_documented(made_run(tmp_path / "run", digits=True))


# --- folders that are half there -----------------------------------------------------------------------------


def test_a_run_that_goes_on(tmp_path):
    folder = made_run(tmp_path / "run", finished=False)
    with (folder / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"kind": "step", "step": 62, "ti')
    found = made(folder)
    assert "not finished" in found.text and "The last record is of step 60" in found.text
    assert "the last line (" in found.text and "is cut; it is left out" in found.text


def test_a_last_line_without_its_end_is_read(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(line("step", 1) + "\n" + line("step", 2))
    assert [each["step"] for each in read_metrics(path)[0]] == [1, 2] and read_metrics(path)[1] == ""


@pytest.mark.parametrize(
    "broken, words",
    [
        ("{oops", "no JSON"),
        ("[1]", "no object"),
        ('{"kind": "step", "time": 1}', "no step"),
        ('{"step": 1}', "no kind"),
    ],
)
def test_any_other_broken_line_is_named(broken, words, tmp_path):
    folder = made_run(tmp_path / "run")
    write_lines(folder / "metrics.jsonl", [line("step", 1), broken, line("step", 3)])
    with pytest.raises(DataError, match=f"metrics.jsonl:2: {words}"):
        read(folder)


def test_what_is_no_run_folder(tmp_path):
    (tmp_path / "empty").mkdir()
    for folder, words in ((tmp_path / "none", "no such run folder"), (tmp_path / "empty", "not a run folder")):
        with pytest.raises(DataError, match=words):
            page.write([folder])
    folder = made_run(tmp_path / "run")
    (folder / "summary.json").write_text("[]")
    with pytest.raises(DataError, match="summary.json: holds a list, expected an object"):
        page.write([folder])
    with pytest.raises(DataError, match="cannot write"):
        page.write([made_run(tmp_path / "other")], tmp_path / "no" / "r.html")


@pytest.mark.parametrize("missing", ["config.json", "summary.json", "metrics.jsonl", "checkpoints", "logs"])
def test_any_part_may_be_missing(missing, tmp_path):
    folder = made_run(tmp_path / "run")
    (folder / missing).rename(tmp_path / "taken away")
    assert set(SECTIONS) <= {attributes.get("id") for _, attributes in made(folder).tags}


def test_summaries_of_other_systems_and_of_elastic_runs(tmp_path):
    folder = made_run(tmp_path / "run")
    summary = json.loads((folder / "summary.json").read_text())
    other = {k: v for k, v in summary.items() if k not in ("proof", "start_seconds", "images_per_second")}
    other |= {"system": "ps", "ranks": [{"task": "ps:0", "rank": 0, "cpu_seconds": 1.0}]}
    write(folder / "summary.json", other)
    assert "Not recorded." in made(folder).text and "ps:0" in made(folder).text
    elastic = {k: v for k, v in summary.items() if k not in ("resumed_from_step", "images_per_second", "start_seconds")}
    write(folder / "summary.json", elastic | {"resets": 1, "changes": []})
    with (folder / "metrics.jsonl").open("a") as metrics:
        metrics.write(line("reset", 60, before=2, world_size=1, epoch=0, samples=5, lost_steps=3, seconds=4.5) + "\n")
    assert "Ranks that came and went" in made(folder).text


# --- the command ---------------------------------------------------------------------------------------------


def test_the_command_says_where_and_needs_no_tensorflow(tmp_path):
    folder = made_run(tmp_path / "run")
    program = (
        "import sys\n"
        "for name in ('tensorflow', 'keras', 'horovod', 'numpy', 'matplotlib'): sys.modules[name] = None\n"
        f"sys.argv = ['hvd-mnist', 'report', {str(folder)!r}]\n"
        "from hvd_mnist.cli import main\nmain()\n"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert told.returncode == 0 and told.stdout.strip() == str(folder / "report.html"), told.stderr


def test_options_of_digits_alone_are_refused(tmp_path):
    ended = CliRunner().invoke(report, [str(made_run(tmp_path / "run")), "--offline"])
    assert isinstance(ended.exception, UsageError) and not (tmp_path / "run" / "report.html").exists()


def test_where_the_time_of_steps_went(tmp_path):
    """Two ranks, ten steps of 100 ms: rank 0 computes 40 ms and waits 50, rank 1 computes 80 ms; 10 ms are exchange."""
    folder = made_run(tmp_path / "run")
    assert "Share of time in communication: 12 % of rank 0's time while it trained" in made(folder).text

    def rows(compute):
        starts = [step / 10 for step in range(10)]
        return [[0, t, t + 0.01, t + 0.01 + compute, t + 0.1, t + 0.1, t] for t in starts]

    ranks = [{"host": "h1", "steps": rows(0.04)}, {"host": "h2", "steps": rows(0.08)}]
    write(folder / "step-times.json", {"schema": 1, "columns": step_parts.COLUMNS, "ranks": ranks})
    ended = CliRunner().invoke(report, [str(folder)])
    assert ended.exit_code == 0, ended.output
    text = Parsed((folder / "report.html").read_text()).text
    assert "Share of time in communication: 30 % of a step" in text  # (50 + 10) / 2 of 100
    assert "1.8 times" in text and "step-times.json" in text  # rank 1 needs 90 ms by itself, rank 0 50
    (folder / "step-times.json").write_text("{}")
    assert "holds no times of steps" in str(CliRunner().invoke(report, [str(folder)]).exception)


def test_open(tmp_path, monkeypatch):
    folder, opened = made_run(tmp_path / "run"), []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or len(opened) > 1)
    ended = CliRunner().invoke(report, [str(folder), "--open"])
    assert "no browser was found" in ended.output and opened == [(folder / "report.html").as_uri()]
    assert "no browser" not in CliRunner().invoke(report, [str(folder), "--open"]).output


# --- curves, as numbers --------------------------------------------------------------------------------------

values = st.floats(allow_nan=True, allow_infinity=True, width=32)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 10**6), values), max_size=12), st.booleans(), st.booleans())
def test_every_point_stands_in_the_picture(points, log, zero):
    made = chart.chart("t", "step", [chart.Series("s", sorted(points), 0, True)], log=log, zero=zero)
    finite = [y for _, y in points if y == y and abs(y) != float("inf") and (y > 0 or not log)]
    assert (made is None) == (not finite)
    if made:
        for x, y, _ in made.lines[0].marks:
            assert chart.LEFT - 1 <= x <= chart.WIDTH - chart.RIGHT + 1 and (zero or 0 <= y <= chart.HEIGHT)
        assert "nan" not in made.lines[0].path and "inf" not in made.lines[0].path


@pytest.mark.parametrize(
    "low, high, expected", [(0, 10, [0, 2, 4, 6, 8, 10]), (0.1, 0.9, [0.2, 0.4, 0.6, 0.8]), (15, 30, [15, 20, 25, 30])]
)
def test_ticks(low, high, expected):
    assert chart.ticks(low, high) == pytest.approx(expected)


def test_texts():
    assert (
        page.in_bytes(12_345_678) == "12.3 MB" and page.in_bytes(12) == "12 B" and page.in_bytes(None) == "not recorded"
    )
    assert page.number(79510) == "79\N{NARROW NO-BREAK SPACE}510" and page.number(0.28312) == "0.283"
    assert page.shown(None) == "none" and page.shown(True) == "yes" and page.shown(()) == "none"
    assert page.command_line(["a b", "--key", "x y", "--epochs", "2"]) == "'a b' --key (hidden) --epochs 2"
    assert page.command_line(["/venv/bin/hvd-mnist", "train"]) == "hvd-mnist train"
    assert page.command_line(["/venv/lib/hvd_mnist/__main__.py", "train"]) == "hvd-mnist train"
    assert chart.short(12000) == "12k" and chart.short(0.5) == "0.5" and chart.short(2.5e6) == "2.5M"


def test_the_wheel_has_the_template():
    text = (ROOT / "setup.py").read_text()
    assert '"hvd_mnist.report": ["templates/*.j2"]' in text and list((ROOT / "hvd_mnist/report/templates").glob("*.j2"))
    assert os.path.isfile(page.TEMPLATE / "report.html.j2")
