"""The words for srun inside a Slurm allocation. No MPI: runtime/slurm_rendezvous.py lets the tasks meet. Pure."""

from __future__ import annotations

from hvd_mnist.cluster import ranges
from hvd_mnist.errors import LaunchError
from hvd_mnist.launch.job import Job, Site

TAG = r"^ *(\d+): "


def words(job: Job, site: Site, names: list[str]) -> tuple[list[str], list[str]]:
    """(srun and its options, reasons).

    Raises:
        LaunchError: not inside an allocation, no srun, or ranks per host that srun cannot be told.
    """
    if not site.in_slurm:
        raise LaunchError(
            "--launcher srun outside a Slurm allocation: SLURM_JOB_ID is not set",
            f"salloc -n {job.size}, or sbatch a file of hvd-mnist launch --to slurm",
        )
    if site.srun is None:
        raise LaunchError("no srun on PATH", "--launcher horovodrun or mpirun, or `module load slurm`")
    hosts = [host.name for host in job.placement.hosts]
    argv = [site.srun, f"--nodes={len(hosts)}", f"--ntasks={job.size}"]
    reasons = ["no MPI: rank 0 hosts Horovod's rendezvous and the others meet it over Gloo (--mpi=none)"]
    counts = set(job.placement.counts)
    whole = job.hosts_from == "slurm" and all(count == host.slot_count for host, count in job.host_counts)
    if len(counts) == 1:
        argv.append(f"--ntasks-per-node={counts.pop()}")
    elif not whole:
        each = ", ".join(f"{host.name}: {count}" for host, count in job.host_counts)
        raise LaunchError(
            f"srun takes one number of ranks for all nodes, or the whole allocation; here are {each}",
            "--spread, another -np, or --launcher mpirun",
        )
    argv += [f"--nodelist={ranges.compress(hosts)}", "--distribution=block", "--mpi=none", "--label"]
    argv.append("--kill-on-bad-exit=1")
    cpus = site.environ.get("SLURM_CPUS_PER_TASK")
    if cpus:
        argv.append(f"--cpus-per-task={cpus}")
        reasons.append("--cpus-per-task: since Slurm 22.05 srun does not take it over from the allocation by itself")
    return [*argv, f"--export={','.join(names)}"], reasons
