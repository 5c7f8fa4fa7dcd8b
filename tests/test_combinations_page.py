"""Every row of docs/combinations.md names a test that is there."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_rows_name_tests():
    rows = [line for line in (ROOT / "docs/combinations.md").read_text().splitlines() if line.startswith("| ")][1:]
    checks = "\n".join(path.read_text() for path in (ROOT / "tests/parallel/checks").glob("check_*.py"))
    defined = set(re.findall(r"^def (test_\w+)", checks, re.MULTILINE))
    files = {path.name for path in (ROOT / "tests/parallel/checks").glob("check_*.py")}
    assert len(rows) > 15
    for row in rows[1:]:
        last = row.rstrip("| ").split("|")[-1]
        named = set(re.findall(r"\b(test_\w+|check_\w+\.py)\b", last))
        assert named or "the same" in last, row
        assert named <= defined | files, f"{named - defined - files} in {row}"
