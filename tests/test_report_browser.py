"""The report in a real Chromium: nothing on the console, nothing fetched, readable by day, by night and on a phone."""

from pathlib import Path

import pytest

from hvd_mnist.report import page as report
from tests.chromium import Chromium, program
from tests.made_runs import made_run

pytestmark = pytest.mark.timeout(300)
PHONE, DESK = 390, 1280

# For each element that has text of its own: the contrast of that text with what is behind it (WCAG 2), worst first.
CONTRASTS = """
(() => {
  const linear = (v) => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = (c) => { const [r, g, b] = c.map(v => linear(v / 255)); return .2126 * r + .7152 * g + .0722 * b; };
  const parse = (text) => { const n = text.match(/[\\d.]+/g).map(Number); return {rgb: n.slice(0, 3), a: n[3] ?? 1}; };
  const over = (top, below) => top.rgb.map((v, i) => v * top.a + below[i] * (1 - top.a));
  const behind = (e) => e ? over(parse(getComputedStyle(e).backgroundColor), behind(e.parentElement)) : [255, 255, 255];
  const found = [];
  for (const e of document.body.querySelectorAll('*')) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || !e.getClientRects().length) continue;
    const style = getComputedStyle(e), ink = parse(e.namespaceURI.endsWith('svg') ? style.fill : style.color);
    const ground = behind(e), one = light(over(ink, ground)), two = light(ground);
    found.push([(Math.max(one, two) + .05) / (Math.min(one, two) + .05), e.tagName, e.textContent.slice(0, 40)]);
  }
  return found.sort((a, b) => a[0] - b[0]);
})()
"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    if program() is None:
        pytest.skip("no Chromium on PATH: apt-get install chromium")
    with Chromium(tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    """Three runs: whole, with other settings, and one that was cut off; its name would like to be a script."""
    folder = tmp_path_factory.mktemp("runs")
    evil = "<img src=x onerror=alert(1)>"
    runs = [
        made_run(folder / "two ranks", digits=True),
        made_run(folder / "four", ranks=4, learning_rate=0.008),
        made_run(folder / evil, finished=False, steps=40, learning_rate=0.002),
    ]
    with (runs[0] / "logs" / "rank-1.log").open("a") as log:
        log.write("2026-11-29 22:51:00 bash: orted: command not found\n")
    return report.write(runs)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [DESK, PHONE])
def test_by_day_by_night_and_on_a_phone(chromium, file, tmp_path, width, dark):
    page = chromium.open(file.as_uri(), width=width, dark=dark)
    assert page.trouble == []
    fetched = [address for address in page.requests if not address.startswith("data:")]
    assert fetched == [file.as_uri()], "the page asked for something"
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "the page is wider than the window"
    ratio, *where = page.evaluate(CONTRASTS)[0]
    assert ratio >= 4.5, f"contrast {ratio:.2f}: {where}"

    from PIL import Image

    with Image.open(page.screenshot(tmp_path / "page.png", whole=False)) as picture:
        shades = picture.convert("L").histogram()
        colours = picture.convert("RGB").getcolors(1 << 24)
    assert len(colours) > 100, "the picture is blank"
    mean = sum(shade * count for shade, count in enumerate(shades)) / sum(shades)
    assert mean < 80 if dark else mean > 180


def test_what_the_browser_makes_of_it(chromium, file):
    page = chromium.open(file.as_uri())
    parts = page.evaluate("[...document.querySelectorAll('nav a')].map(a => a.hash.slice(1))")
    assert len(parts) == 9
    assert page.evaluate("[...document.querySelectorAll('main > section')].map(s => s.id)") == parts
    assert page.evaluate("document.querySelectorAll('script').length") == 0
    assert "<img src=x onerror=alert(1)>" in page.evaluate("document.querySelector('h1').innerText")
    # Pictures have names and descriptions for those who do not see them, and lines that were really drawn.
    tree = page.call("Accessibility.getFullAXTree")["nodes"]
    images = [node["name"]["value"] for node in tree if node.get("role", {}).get("value") in ("image", "img")]
    for title in ("Loss", "Accuracy, %", "Learning rate", "Images per second, all ranks", "Time in communication"):
        assert any(title in name for name in images), images
    assert any("that was taken for" in name for name in images)
    long = page.evaluate("[...document.querySelectorAll('.line > path')].map(p => p.getTotalLength())")
    assert len(long) == 2 * 2 * 3 + 3 * 3 and min(long) > 20
    dashes = page.evaluate(
        "[...document.querySelectorAll('.legend .key path')].map(p => getComputedStyle(p).strokeDasharray)"
    )
    assert len(set(dashes)) >= 3, "colour alone would tell the runs apart"
    # Links: each local address is a file that is there; following one inside the page moves it.
    links = page.evaluate("[...document.querySelectorAll('a[href^=\"./\"]')].map(a => decodeURIComponent(a.href))")
    assert len(links) >= 15
    assert all(Path(link.removeprefix("file://")).exists() for link in links)
    page.evaluate("document.querySelector('nav a[href=\"#warnings\"]').click()")
    assert page.evaluate("location.hash") == "#warnings" and page.evaluate("scrollY") > 300
    # What is folded opens.
    page.evaluate("document.querySelector('#settings summary').click()")
    assert page.evaluate("document.querySelector('#settings details').open")
    assert page.trouble == []


def test_this_browser_would_have_told(chromium, tmp_path):
    """The control: a page that logs, fetches and breaks its own policy is seen to do so."""
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'; script-src 'unsafe-inline'\">"
        "<script>console.log('hello'); setTimeout(() => undefinedThing(), 0)</script><img src='nowhere.png'>"
    )
    page = chromium.open(bad.as_uri())
    page.evaluate("1")
    assert any("hello" in each for each in page.trouble)
    assert any("Content Security Policy" in each for each in page.trouble)
