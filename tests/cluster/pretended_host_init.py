"""Process 1 of a pretended host: dresses its namespaces, says "ready", then waits for its lifeline.

Started by pretended_hosts.py under ``unshare``; the one argument is JSON. The lifeline is standard input: its
other end is held by the test process alone. When that process ends, however it ends, the read below returns,
process 1 ends, and the kernel kills all that runs in the PID namespace. The network goes with the last process.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys


def main() -> None:
    settings = json.loads(sys.argv[1])
    socket.sethostname(settings["hostname"])
    for folder in settings["tmpfs"]:
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
    for folder in settings["folders"]:
        os.makedirs(folder, mode=0o755, exist_ok=True)
    for source, target in settings["binds"]:
        subprocess.run(["mount", "--bind", source, target], check=True)
    os.chdir("/")
    # Ignored, not handled: the kernel then reaps orphans for us.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    while os.read(0, 64):
        pass


if __name__ == "__main__":
    main()
