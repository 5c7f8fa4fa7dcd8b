"""Faults of Horovod 0.28.1 that no header can mend: a few lines of its source each, replaced before it is compiled."""

from __future__ import annotations

import hashlib
import tarfile
from dataclasses import dataclass
from pathlib import Path

from hvd_mnist.errors import BuildError, printable


@dataclass(frozen=True)
class Mend:
    """``found``, which must stand exactly once in ``path``, becomes ``mended``."""

    path: str
    found: str
    mended: str
    why: str


MENDS = (
    Mend(
        "horovod/common/gloo/gloo_controller.cc",
        "global_ranks_.reserve(size_);",
        "global_ranks_.resize(size_);",
        "The list of ranks keeps size 0, so that under Gloo the stall check looks at no rank: a missing rank is never "
        "named and the job waits for ever, whatever HOROVOD_STALL_SHUTDOWN_TIME_SECONDS says (seen: a rank 25 s late "
        "with limits of 4 and 10 s; under MPI the same program ends after 12 s).",
    ),
    Mend(
        "horovod/runner/http/http_server.py",
        """    def start(self, handler_cls=RendezvousHandler):
        self._httpd, port = find_port(
            lambda addr: RendezvousHTTPServer(
                addr, handler_cls, self._verbose))
""",
        """    def start(self, handler_cls=RendezvousHandler, address=''):
        self._httpd, port = find_port(
            lambda addr: RendezvousHTTPServer(
                (address, addr[1]), handler_cls, self._verbose))
""",
        "The rendezvous asks nobody who he is, and listens on every interface; it need only on the one that ranks use.",
    ),
    Mend(
        "horovod/runner/gloo_run.py",
        "global_rendezv_port = rendezvous.start()\n",
        "global_rendezv_port = rendezvous.start(address=server_ip)\n",
        "The address that ranks are told, and no other: loopback where all ranks are on this host.",
    ),
    Mend(
        "horovod/runner/gloo_run.py",
        "global_rendezv_port = rendezvous.start(handler)\n",
        "global_rendezv_port = rendezvous.start(\n"
        "        handler, network.get_driver_ip(settings.nics) if settings.nics else '')\n",
        "The same for elastic jobs, where --network-interfaces names the interface.",
    ),
    Mend(
        "horovod/runner/elastic/rendezvous.py",
        "                addresses, secret_key = codec.loads_base64(value)\n"
        "                self._put_worker_addresses(host, int(local_rank), addresses, secret_key)\n",
        """                import base64
                import io
                import pickle

                class PlainData(pickle.Unpickler):
                    def find_class(self, module, name):
                        raise pickle.UnpicklingError('only plain data is accepted here')

                addresses, secret_key = PlainData(io.BytesIO(base64.b64decode(value))).load()
                self._put_worker_addresses(host, int(local_rank), addresses, secret_key)
                return  # not stored, where a GET would give the key to anyone
""",
        "An elastic launcher unpickles, with cloudpickle, what any machine that reaches its port sends: code of a "
        "stranger. What ranks send is a dictionary of addresses and a key in bytes; the key was readable by GET.",
    ),
)


def mends_hash() -> str:
    """sha256 over the mends, as 64 hex digits; part of the wheel's cache key."""
    text = "\0".join(f"{mend.path}\0{mend.found}\0{mend.mended}" for mend in MENDS)
    return hashlib.sha256(text.encode()).hexdigest()


def mended_source(sdist: Path, work: Path) -> Path:
    """Unpack Horovod's source archive into ``work`` and mend it; its folder.

    Raises:
        BuildError: a line to mend is not there once: another Horovod than the one that was looked at.
    """
    with tarfile.open(sdist) as archive:
        safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # early 3.10 has no filters
        archive.extractall(work, **safely)
    source = work / sdist.name.removesuffix(".tar.gz")
    for mend in MENDS:
        path = source / mend.path
        text = path.read_text(encoding="utf-8")
        if (places := text.count(mend.found)) != 1:
            raise BuildError(
                f"{mend.path} has {places} places '{printable(mend.found)}', expected 1: another Horovod",
                "see hvd_mnist/horovod_build/mends.py",
            )
        path.write_text(text.replace(mend.found, mend.mended), encoding="utf-8")
    return source
