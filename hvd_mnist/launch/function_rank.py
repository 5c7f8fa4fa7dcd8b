"""What each rank of ``hvd_mnist.run`` runs: python -m hvd_mnist.launch.function_rank FOLDER"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from hvd_mnist.cluster.identity import identity_from


def main() -> None:
    import cloudpickle

    folder = Path(sys.argv[1])
    if not (folder / "function").exists():
        sys.exit(
            f"hvd-mnist: {folder} is not there on {socket.gethostname()}: run(folder=...) must name a shared folder"
        )
    rank = identity_from(os.environ).rank
    function, args, kwargs = cloudpickle.loads((folder / "function").read_bytes())
    result = cloudpickle.dumps(function(*args, **kwargs))
    temporary = folder / f".result-{rank}"
    temporary.write_bytes(result)
    temporary.rename(folder / f"result-{rank}")


if __name__ == "__main__":
    main()
