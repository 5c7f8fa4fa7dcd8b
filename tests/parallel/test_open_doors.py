"""What a job listens on, and what it believes of strangers who knock: docs/security.md."""

import base64
import pickle
import time
import urllib.error
import urllib.request

import psutil
import pytest

from tests.parallel.ranks import started


def listening(pid):
    """The addresses on which a process and its children listen."""
    found = set()
    for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        found |= {each.laddr.ip for each in process.net_connections("inet") if each.status == "LISTEN"}
    return found


def test_the_rendezvous_of_ranks_on_one_host_listens_on_loopback_alone(tmp_path):
    script = f"touch {tmp_path}/$HOROVOD_RANK; sleep 60"
    with started(["sh", "-c", script], launcher="gloo", np=2) as process:
        until = time.monotonic() + 60
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < until:
            time.sleep(0.1)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]
        assert listening(process.pid) == {"127.0.0.1"}


class Stranger:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        import os

        return os.mkdir, (self.path,)


class Driver:
    def __init__(self):
        self.registered = []

    def register_worker_server(self, *arguments):
        self.registered.append(arguments)


def test_an_elastic_launcher_runs_no_code_of_strangers_and_keeps_its_keys(tmp_path):
    from horovod.runner.elastic.rendezvous import create_rendezvous_handler
    from horovod.runner.http.http_server import RendezvousServer

    driver, server = Driver(), RendezvousServer()
    url = f"http://127.0.0.1:{server.start(create_rendezvous_handler(driver), '127.0.0.1')}/worker_addresses/h1:0"

    def put(value):
        body = base64.b64encode(pickle.dumps(value))
        return urllib.request.urlopen(urllib.request.Request(url, body, method="PUT"), timeout=10)

    try:
        with pytest.raises((urllib.error.URLError, OSError)):
            put(Stranger(str(tmp_path / "made by a stranger")))
        assert not list(tmp_path.iterdir()) and not driver.registered
        put(({"lo": [("127.0.0.1", 5)]}, b"key"))
        assert driver.registered == [("h1", 0, {"lo": [("127.0.0.1", 5)]}, b"key")]
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(url, timeout=10)
    finally:
        server.stop()
