"""How many bytes has this process, and this host, sent and received? The kernel's counters, without a tool or root.

``sockets`` sums TCP_INFO over the TCP connections that this process has open: payload, with nothing of other
processes in it, but a connection that was closed is no longer counted. ``interfaces`` sums the network interfaces of
this process' network namespace, the loopback left out: headers counted too, and every process of the host.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import closing, suppress
from pathlib import Path

# struct tcp_info of linux/tcp.h, which only ever grows at its end.
_BYTES_RECEIVED, _BYTES_SENT, _SIZE = 128, 200, 208


def counters() -> dict[str, int]:
    """Bytes so far: sockets_sent, sockets_received, interfaces_sent, interfaces_received."""
    sent, received = _sockets()
    out, came = _interfaces(Path("/proc/self/net/dev").read_text(encoding="ascii"))
    return {
        "sockets_sent": sent,
        "sockets_received": received,
        "interfaces_sent": out,
        "interfaces_received": came,
    }


def since(before: dict[str, int]) -> dict[str, int]:
    """Bytes since ``before``, which ``counters`` gave; never below 0 where a connection has been closed meanwhile."""
    return {name: max(0, value - before[name]) for name, value in counters().items()}


def _sockets() -> tuple[int, int]:
    sent = received = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with closing(socket.socket(fileno=os.dup(int(name)))) as one:
                if one.type != socket.SOCK_STREAM or one.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 512)
            if len(info) >= _SIZE:
                sent += struct.unpack_from("=Q", info, _BYTES_SENT)[0]
                received += struct.unpack_from("=Q", info, _BYTES_RECEIVED)[0]
    return sent, received


def _interfaces(text: str) -> tuple[int, int]:
    """(sent, received) of all interfaces but the loopback, from the text of /proc/net/dev."""
    sent = received = 0
    for line in text.splitlines():
        name, colon, numbers = line.partition(":")
        if colon and name.strip() != "lo":
            fields = numbers.split()
            received, sent = received + int(fields[0]), sent + int(fields[8])
    return sent, received
