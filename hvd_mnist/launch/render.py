"""The same job as a file for Slurm, PBS or Kubernetes (Kubeflow's MPIJob). Text in, text out; nothing is submitted."""

from __future__ import annotations

import shlex
from pathlib import Path

from hvd_mnist.errors import EnvironmentUnfit, LaunchError
from hvd_mnist.launch.job import Job

TARGETS = {"slurm": "slurm.sh.j2", "pbs": "pbs.sh.j2", "k8s": "mpijob.yaml.j2"}


def render(job: Job, target: str) -> str:
    """A job file with as many nodes and ranks per node as the job has hosts; names of hosts are the scheduler's.

    Args:
        job: its words start with "train", or with any program.
        target: slurm, pbs or k8s.

    Raises:
        LaunchError: hosts with different numbers of ranks, which these files cannot say.
        EnvironmentUnfit: jinja2 is not installed.
    """
    try:
        import jinja2
    except ImportError:
        raise EnvironmentUnfit("rendering a job file needs the package jinja2", "pip install jinja2") from None
    counts = set(job.placement.counts)
    if len(counts) > 1:
        each = ", ".join(f"{host.name}: {count}" for host, count in job.host_counts)
        raise LaunchError(
            f"a job file has one number of ranks for all nodes, and here are {each}", "--spread, or another -np"
        )
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["quoted"] = _yaml_quoted
    hostfile = ["--launcher", "mpirun", "--hostfile", "/etc/mpi/hostfile"]  # which the operator writes
    return environment.get_template(TARGETS[target]).render(
        nodes=len(job.placement.hosts),
        per_node=counts.pop(),
        size=job.size,
        program=shlex.join(job.words),
        exports=[shlex.quote(word) for word in job.exports],
        launch_words=["hvd-mnist", "launch", *hostfile, *_exports(job), "--", *job.words],
    )


def _exports(job: Job) -> list[str]:
    return [word for export in job.exports for word in ("-x", export)]


def _yaml_quoted(text: str) -> str:
    import json

    return json.dumps(text)  # a JSON string is a YAML string
