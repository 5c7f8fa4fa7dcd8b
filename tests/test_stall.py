"""The report of a stall, from logs as faulthandler and the ranks write them."""

import subprocess
import sys
from pathlib import Path

from hvd_mnist.runtime.stall import State, collective_in, in_words, log_of, main_stack, state_of, where

STACK = """Timeout (0:00:30)!
Thread 0x00007f8b01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 982 in run

Thread 0x00007f8b02 (most recent call first):
  File "/home/ann/train.py", line 12 in on_epoch_end
  File "/home/ann/train.py", line 40 in <module>
"""


def log(folder: Path, rank: int, text: str) -> Path:
    path = log_of(folder, rank)
    path.write_text(text)
    return path


def test_a_log_that_ends_in_a_stack_is_of_a_missing_rank(tmp_path):
    missing = state_of(log(tmp_path, 1, "2026-11-29 19:00:00 rank 1 of 2\n" + STACK))
    assert (
        missing.stack.splitlines()[0] == '  File "/home/ann/train.py", line 12 in on_epoch_end' and not missing.waited
    )


def test_a_log_that_goes_on_after_a_stack_is_of_a_rank_that_waited_or_moved(tmp_path):
    waited = STACK + "2026-11-29 19:00:40 waited for other ranks in 'gradients' at train.py:40 in main\n"
    assert state_of(log(tmp_path, 0, waited)) == State(waited="in 'gradients' at train.py:40 in main")
    assert state_of(log(tmp_path, 0, STACK + "2026-11-29 19:00:40 goes on after 35 s\n")) == State()
    assert state_of(tmp_path / "rank-9.log") == State()


def test_in_words():
    states = [
        State(waited="in 'g' at a.py:4 in main"),
        State(stack="  File x"),
        State(waited="in 'g' at a.py:4 in main"),
    ]
    line, stacks = in_words(states, ["h1", "h2", "h1"], Path("logs"))
    assert line == (
        "rank 1 on h2 did not come: ranks 0, 2 waited in 'g' at a.py:4 in main; its stack is in logs/rank-1.log"
    )
    assert stacks == "-- where rank 1 on h2 stood (innermost call first):\n  File x\n"
    apart = [State(waited="in 'm' at a.py:9 in on_epoch_end"), State(waited="in 'g' at a.py:4 in main")]
    assert in_words(apart, ["h1", "h1"], Path("logs"))[0] == (
        "ranks waited for each other in different places: rank 0 waited in 'm' at a.py:9 in on_epoch_end; "
        "rank 1 waited in 'g' at a.py:4 in main"
    )


def test_long_stacks_are_cut():
    text = "Thread 0x01 (most recent call first):\n" + "\n".join(f'  File "a.py", line {n} in f' for n in range(99))
    assert main_stack(text).splitlines()[-1] == "  ... and 84 more"


def test_where_and_in_which_collective():
    try:
        raise RuntimeError("x [[{{node cond/Adam.group0}}]] [Op:y]")
    except RuntimeError as error:
        assert where(error).startswith("test_stall.py:")
        assert collective_in(error, "other") == "'Adam.group0'"
    assert collective_in(RuntimeError("[[{{node HorovodAllgather}}]]"), "summary") == "'summary'"
    assert collective_in(RuntimeError("shut down"), "") == "a collective"


def test_a_rank_in_native_code_that_holds_the_interpreter_writes_its_stack(tmp_path):
    """PyDLL calls keep the interpreter locked: no Python thread could write anything here."""
    program = (
        "import ctypes, sys, pathlib\n"
        "from hvd_mnist.runtime.stall import Watch\n"
        "watch = Watch(pathlib.Path(sys.argv[1]), 0, 1, 1.0); watch.start()\n"
        "def stuck(): ctypes.PyDLL(None).sleep(3)\n"
        "stuck()\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=60)
    assert " in stuck" in state_of(log_of(tmp_path, 0)).stack


STANDS_STILL = """
import sys, threading, time
from pathlib import Path
from hvd_mnist.runtime.stall import Watch

def busy():
    while True:
        [str(number) for number in range(50)]

for _ in range(2):  # Python that runs while stacks are read
    threading.Thread(target=busy, daemon=True).start()
watch = Watch(Path(sys.argv[1]), 0, 1, 0.5)
watch.start()

def in_python():
    time.sleep(1.5)

def in_native_code():  # holding the interpreter
    import ctypes
    ctypes.PyDLL(None).usleep(2_500_000)

for stand in (in_python, in_native_code):
    stand()
    state = (Path(sys.argv[1]) / "rank-0.log").read_text()
    assert stand.__name__ in state, state
    watch.moved()
watch.stop()
assert "goes on after" in (Path(sys.argv[1]) / "rank-0.log").read_text()
"""


def test_a_rank_that_stands_still_is_written_down_and_lives(tmp_path):
    """In Python, and where native code holds the interpreter."""
    done = subprocess.run([sys.executable, "-c", STANDS_STILL, tmp_path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
