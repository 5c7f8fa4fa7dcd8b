"""A few hundred mutated inputs for each reader of foreign bytes, in a process with a memory limit (tests/fuzz.py)."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import Reader, blindly, judge, readers

INPUTS = 300


def test_the_first_seed_of_each_reader_is_read():
    for name, reader in readers().items():
        assert judge(reader, reader.seeds[0]) == "read", name


def test_a_finding_is_a_finding():
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        judge(Reader(lambda content: 1 / 0, []), b"")


@pytest.mark.parametrize("name", readers())
def test_mutated_input_is_read_or_refused_in_one_line(name):
    code = (
        "from tests.fuzz import *\n"
        f"assert judge(readers()[{name!r}], readers()[{name!r}].seeds[0]) == 'read'\n"
        "limit_memory()\n"
        f"assert judge(readers()[{name!r}], readers()[{name!r}].seeds[0]) == 'read'\n"
        f"print(blindly({name!r}, {INPUTS}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_mutations_reach_both_answers():
    assert all(blindly("idx", 300).values()) and all(blindly("hosts", 300).values())
