"""Words typed become one call and one exit status. ``hvd-mnist --help`` lists the words.

A command is a ``click.Command`` that lives beside the job that it starts. This file knows only its name, its
place and its one-line help, so that ``--help`` and completion import no job, and ``hosts`` or ``doctor``
start where TensorFlow cannot be imported at all.
"""

from __future__ import annotations

import sys

import click

from hvd_mnist import __version__
from hvd_mnist.commands.lazy import LazyGroup
from hvd_mnist.errors import EnvironmentUnfit, HvdMnistError

COMMANDS = {
    # name: (module, attribute, one line of help)
    "train": ("hvd_mnist.commands.train", "train", "Train MNIST on every rank of this job (or alone)."),
    "evaluate": ("hvd_mnist.commands.evaluate", "evaluate", "Test accuracy of a checkpoint, without a launcher."),
    "predict": ("hvd_mnist.commands.evaluate", "predict", "Which digit is on each of these pictures?"),
    "checkpoint": ("hvd_mnist.commands.checkpoint", "checkpoint", "List, verify, show and export checkpoints."),
    "plot": ("hvd_mnist.commands.plot", "plot", "A picture of one or more runs."),
    "report": ("hvd_mnist.commands.report", "report", "One HTML file that explains one or more runs."),
    "explain": ("hvd_mnist.commands.explain", "explain", "What an exit status or a message means, and what to do."),
    "data": ("hvd_mnist.commands.data", "data", "Fetch a data set into the cache, or say where it is."),
    "build-horovod": (
        "hvd_mnist.commands.build_horovod",
        "build_horovod",
        "Build Horovod for the TensorFlow that is installed.",
    ),
    "hosts": ("hvd_mnist.commands.hosts", "hosts", "Check, convert and expand lists of hosts."),
    "whoami": ("hvd_mnist.commands.hosts", "whoami", "Rank, size and launcher of this process, and why."),
    "launch": ("hvd_mnist.commands.launch", "launch", "Start a job on hosts: horovodrun, mpirun, srun or here."),
    "baseline": ("hvd_mnist.commands.baseline", "baseline", "The older ways: one device, towers, parameter servers."),
    "bench": ("hvd_mnist.commands.bench", "bench", "Measure: the older ways beside the ring, and more."),
    "doctor": ("hvd_mnist.commands.doctor", "doctor", "Can this machine, or can these hosts, train?"),
}


# What setup.py asks for and only some commands import; and packages that are called otherwise than what is imported.
OTHER_NAMES = {"hostlist": "python-hostlist", "yaml": "pyyaml"}
NEEDED = {*OTHER_NAMES, "cloudpickle", "filelock", "jinja2", "matplotlib", "numpy", "packaging", "pooch", "psutil"}


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="hvd-mnist")
def cli():
    """Train with Horovod ring-allreduce on TensorFlow 2.21 and Keras 3."""


def main() -> None:
    """Entry point: run one command; turn what it raises into one line and an exit status."""
    try:
        status = cli.main(prog_name="hvd-mnist", standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except click.exceptions.Abort:
        sys.exit(130)  # Ctrl-C: 128 + SIGINT
    except click.ClickException as wrong:  # an option or argument that click refused
        wrong.show()
        sys.exit(wrong.exit_code)
    except HvdMnistError as error:
        _end(error)
    except ModuleNotFoundError as missing:  # of ours: what a user's own file imports keeps its traceback
        if missing.name not in NEEDED:
            raise
        package = OTHER_NAMES.get(missing.name, missing.name)
        _end(
            EnvironmentUnfit(f"this needs the package {package}, which {sys.prefix} has not", f"pip install {package}")
        )


def _end(error: HvdMnistError) -> None:
    click.echo(f"hvd-mnist: error: {error}", err=True)
    sys.exit(error.exit_status)
