"""Running a command: whose status, which lines, which files, and no process left, however it ends.

The launcher here is a stand-in of a few lines that behaves like horovodrun: it starts a guard for each rank, marks
their lines, and ends all when one fails. The real ones are in tests/cluster/test_launch.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[1]
RANK = "import os, sys, time, signal; r = int(os.environ['HOROVOD_RANK']); "
STAND_IN = r"""
import os, signal, subprocess, sys, threading
size, words = int(sys.argv[1]), sys.argv[2:]
ranks = []
def mark(rank, pipe, out):
    for line in pipe:
        out.write(b"[%d]<stdout>:%s" % (rank, line)); out.flush()
for rank in range(size):
    me = {"HOROVOD_RANK": rank, "HOROVOD_SIZE": size, "HOROVOD_LOCAL_RANK": rank, "HOROVOD_LOCAL_SIZE": size,
          "HOROVOD_GLOO_RENDEZVOUS_ADDR": "none"}
    guard = [sys.executable, "-m", "hvd_mnist.launch.guard", "--", *words]
    ranks.append(subprocess.Popen(guard, env={**os.environ, **{k: str(v) for k, v in me.items()}},
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE))
threads = [threading.Thread(target=mark, args=(n, pipe, out)) for n, r in enumerate(ranks)
           for pipe, out in ((r.stdout, sys.stdout.buffer), (r.stderr, sys.stderr.buffer))]
for t in threads: t.start()
def end(*_):
    for r in ranks: r.terminate()
if os.environ.get("DEAF"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, end)
failed = 0
while not os.environ.get("DEAF") and any(r.poll() is None for r in ranks) and not failed:
    failed = max(r.poll() or 0 for r in ranks)
    threading.Event().wait(0.02)
if failed: end()
for r in ranks: r.wait()
for t in threads: t.join()
print("the launcher says that a process has failed" if failed else "", end="")
sys.exit(1 if failed else 0)
"""
RUN = r"""
import os, sys
from hvd_mnist import cli, launch
from hvd_mnist.cluster.hostfile import parse_hosts
from hvd_mnist.cluster.placement import place
from hvd_mnist.launch import horovodrun, run
from hvd_mnist.launch.job import Command
size, options = int(sys.argv[1]), eval(sys.argv[2])
run.ALONE_SECONDS = run.STOP_SECONDS = 2
argv = (sys.executable, os.environ["STAND_IN"], str(size), *sys.argv[3:]) if size > 1 else tuple(sys.argv[3:])
command = Command("horovodrun-gloo", argv, dict(os.environ), os.getcwd(), place(parse_hosts(f"localhost:{size}")), (),
                  tag=horovodrun.TAG if size > 1 else None, elastic="ELASTIC" in os.environ)
cli.cli = lambda **_: None
cli.cli.main = lambda **_: run.run(command, log_dir="logs", **options)
cli.main()
"""


@pytest.fixture
def start(tmp_path):
    """``start(size, program, **options)``: run.run in a process of its own; nothing of it is left at the end."""
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    started = []

    def start(size, program, deaf=False, elastic=False, **options):
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "STAND_IN": str(tmp_path / "stand_in.py")}
        environ |= {"MARK_OF_TEST": str(tmp_path)} | ({"DEAF": "1"} if deaf else {})
        environ |= {"ELASTIC": "1"} if elastic else {}
        words = [sys.executable, "-c", RUN, str(size), repr(options), sys.executable, "-u", "-c", program]
        process = subprocess.Popen(
            words, cwd=tmp_path, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
    left = leftovers(tmp_path)
    for process in left:
        process.kill()
    assert not left


def leftovers(tmp_path, grace=10.0):
    """Processes that carry this test's mark in their environment, given time to end."""
    until = time.monotonic() + grace
    while True:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("MARK_OF_TEST") == str(tmp_path):
                    found.append(process)
            except psutil.Error:
                continue
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.1)


def finish(process, timeout=60):
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def test_a_good_job(start, tmp_path):
    # Identical lines are folded where they come close together, so the ranks meet first.
    here = "all(os.path.exists(f'here-{k}') for k in range(3))"
    meet = f"open(f'here-{{r}}', 'w'); [time.sleep(0.01) for _ in iter(lambda: {here}, True)]; "
    status, out, err = finish(start(3, RANK + meet + "print('same'); print('I am', r)", prefix_output=True))
    assert (status, err) == (0, "")
    assert sorted(out.split("\n")) == ["", "[0-2] same", "[0] I am 0", "[1] I am 1", "[2] I am 2"]
    assert (tmp_path / "logs" / "rank-2.out.log").read_text() == "same\nI am 2\n"


def test_one_rank_alone(start, tmp_path):
    assert finish(start(1, "print('x')")) == (0, "x\n", "")
    status, out, err = finish(start(1, "print('x'); raise SystemExit(5)"))
    assert status == 5 and err.splitlines()[-1].startswith("hvd-mnist: error: rank 0 on")
    assert (tmp_path / "logs" / "rank-0.out.log").read_text() == "x\nx\n"


@pytest.mark.parametrize(
    ("fail", "status", "how"),
    [
        ("sys.exit(7)", 7, "ended with status 7"),
        ("os.kill(os.getpid(), 9)", 137, "was ended by signal 9 (SIGKILL"),
        ("os.kill(os.getpid(), 11)", 139, "was ended by signal 11 (SIGSEGV)"),
    ],
)
def test_the_status_and_the_last_lines_are_the_failing_ranks(start, fail, status, how):
    program = RANK + f"print('I am', r)\nif r == 1: print('cause', file=sys.stderr); {fail}\ntime.sleep(100)"
    found, out, err = finish(start(3, program))
    assert found == status
    *tail, last = err.splitlines()
    assert last.startswith("hvd-mnist: error: rank 1 on") and how in last and "rank-1.out.log" in last
    assert "[1] cause" in tail[tail.index(next(line for line in tail if "failed first" in line)) :]
    assert "the launcher says" not in out  # it is in launcher.log


def test_a_launcher_that_lets_the_others_run_on_is_ended(start):
    program = RANK + "sys.exit(3) if r == 1 else time.sleep(100)"
    status, _, err = finish(start(2, program, deaf=True))
    assert status == 3 and "rank 1 on" in err.splitlines()[-1]


def test_an_elastic_job_outlives_a_rank_that_failed(start):
    """Its launcher goes on; for longer than another job may run when a rank has failed."""
    status, _, err = finish(start(2, RANK + "sys.exit(3) if r == 1 else time.sleep(4)", deaf=True, elastic=True))
    assert status == 0 and "the job went on without it: rank 1 on" in err.splitlines()[-1]


def test_an_elastic_job_whose_rank_gave_up_is_ended(start):
    """Rank 1 lost rank 0, which hangs: Horovod's launcher would wait for it for ever."""
    status, _, err = finish(start(2, RANK + "sys.exit(201) if r == 1 else time.sleep(100)", deaf=True, elastic=True))
    assert status == 201 and "rank 1 on" in err.splitlines()[-1]


@pytest.mark.parametrize("deaf", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_and_becomes_the_status(start, number, deaf):
    process = start(2, RANK + "print('up'); time.sleep(100)", deaf=deaf)
    assert process.stdout.readline().startswith("up")
    process.send_signal(number)
    status, _, err = finish(process)
    assert status == 128 + number and err.splitlines()[-1] == f"hvd-mnist: stopped by {number.name}"


@pytest.mark.parametrize("deaf", [False, True])
def test_nothing_is_left_when_launch_itself_is_killed(start, tmp_path, deaf):
    program = RANK + "print('up'); import subprocess; subprocess.run(['sleep', '100'])"
    process = start(2, program, deaf=False)
    assert process.stdout.readline().startswith("up")
    if deaf:  # the launcher is killed too: then each guard sees that nobody reads it any more
        for child in psutil.Process(process.pid).children():
            child.kill()
    process.kill()
    process.wait()
    assert leftovers(tmp_path) == []


def test_a_limit_of_time(start):
    status, _, err = finish(start(2, RANK + "time.sleep(100)", timeout=1))
    assert status == 6 and "still running after 1 s" in err.splitlines()[-1]


def test_a_reader_that_goes_away_does_not_end_the_job(start, tmp_path):
    process = start(2, RANK + "[print(i) or time.sleep(.01) for i in range(100)]")
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(60) == 0
    process.stdout = None
    assert (tmp_path / "logs" / "rank-1.out.log").read_text().split() == [str(i) for i in range(100)]


# The guard alone.


def guard(*words, **environ):
    return subprocess.Popen(
        [sys.executable, "-m", "hvd_mnist.launch.guard", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environ},
    )


ME = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
ME |= {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}


def test_guard_settles_what_its_host_decides(tmp_path):
    folder = tmp_path / "a b"
    folder.mkdir()
    show = "import os; e = os.environ; print(os.getcwd(), e['CUDA_VISIBLE_DEVICES'], e['NCCL_SOCKET_IFNAME'])"
    options = ["--chdir", str(folder), "--gpus", "0-0=5", "--gpus", "1-2=2,3", "--subnet", "127.0.0.0/8"]
    status, out, err = finish(guard(*options, "--", sys.executable, "-c", show, **ME))
    assert (status, out, err) == (0, f"{folder} 2,3 lo\n", "")
    threads = finish(guard("--", sys.executable, "-c", "import os; print(os.environ['OMP_NUM_THREADS'])", **ME))[1]
    assert int(threads) == max(1, len(os.sched_getaffinity(0)) // 2)


@pytest.mark.parametrize(
    ("options", "status", "found"),
    [
        (["--subnet", "203.0.113.0/24", "--", "true"], 6, "has no interface in 203.0.113.0/24: it has lo 127.0.0.1/8"),
        (["--chdir", "/none", "--", "true"], 6, "/none: No such file"),
        (["--", "no-such-program"], 127, "rank 1 on"),
    ],
)
def test_guard_says_what_is_wrong_on_its_host(options, status, found):
    ended, _, err = finish(guard(*options, **ME))
    assert ended == status and found in err and "Traceback" not in err


def test_guard_hands_on_whole_lines_and_begun_ones_late():
    program = "import sys, time; w = sys.stdout.write; f = sys.stdout.flush\n"
    program += "for c in 'a line\\n': w(c); f()\nw('prompt'); f(); time.sleep(2.5); w(' done\\n'); w('end')"
    process = guard("--", sys.executable, "-c", program, **ME)
    pieces = []
    while piece := os.read(process.stdout.fileno(), 100):
        pieces.append(piece)
    assert pieces == [b"a line\n", b"prompt", b" done\n", b"end"]
    assert process.wait(20) == 0
    process.communicate()


def test_guard_ends_what_the_program_left_behind():
    orphan = "import subprocess; print(subprocess.Popen(['sleep', '100'], start_new_session=True).pid)"
    status, out, _ = finish(guard("--", sys.executable, "-c", orphan, **ME))
    assert status == 0 and not psutil.pid_exists(int(out))


def test_a_program_never_outlives_its_guard():
    process = guard("--", sys.executable, "-u", "-c", "import os, time; print(os.getpid()); time.sleep(100)", **ME)
    program = psutil.Process(int(process.stdout.readline()))
    process.kill()
    psutil.wait_procs([program], timeout=10)
    assert not program.is_running() or program.status() == psutil.STATUS_ZOMBIE
    process.communicate()
