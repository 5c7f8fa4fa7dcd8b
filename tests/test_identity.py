"""Who am I: variables as each launcher was seen to set them, and every way in which they can mislead.

Sets marked "seen" were printed by ``env`` under that launcher (addresses and folders left out): Horovod 0.28.1,
Open MPI 4.1.8 and 5.0.11, MPICH 5.0.2, Intel MPI 2021.18, Slurm 22.05. MVAPICH2's are from its manual.
"""

from __future__ import annotations

import json
import re

import pytest

from hvd_mnist.cluster.identity import Identity, check_agrees, identity_from
from hvd_mnist.errors import WorldError


def env(text: str, **more: str) -> dict[str, str]:
    return {**dict(pair.split("=", 1) for pair in text.split()), **more}


GLOO = env(  # horovodrun --gloo -np 2 -H localhost:2, rank 1; seen
    "HOROVOD_CONTROLLER=gloo HOROVOD_CPU_OPERATIONS=gloo HOROVOD_CROSS_RANK=0 HOROVOD_CROSS_SIZE=1"
    " HOROVOD_GLOO_IFACE=lo HOROVOD_GLOO_RENDEZVOUS_ADDR=127.0.0.1 HOROVOD_GLOO_RENDEZVOUS_PORT=41240"
    " HOROVOD_HOSTNAME=localhost HOROVOD_LOCAL_RANK=1 HOROVOD_LOCAL_SIZE=2 HOROVOD_RANK=1 HOROVOD_SIZE=2"
    " NCCL_SOCKET_IFNAME=lo PYTHONUNBUFFERED=1"
)
ELASTIC = {**GLOO, "HOROVOD_ELASTIC": "1"}  # horovodrun --min-np 2 --host-discovery-script; seen
OPENMPI_4 = env(  # mpirun -np 2, rank 1; seen
    "OMPI_APP_CTX_NUM_PROCS=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_NODE_RANK=1"
    " OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_MCA_orte_ess_num_procs=2 OMPI_MCA_orte_launch=1"
    " OMPI_UNIVERSE_SIZE=2 PMIX_NAMESPACE=1321861121 PMIX_RANK=1 PMIX_VERSION=3.2.5a1"
)
HOROVODRUN_MPI = {  # horovodrun --mpi: mpirun with options; seen
    **OPENMPI_4,
    **env("NCCL_SOCKET_IFNAME=lo OMPI_MCA_btl=^openib OMPI_MCA_pml=ob1 OMPI_MCA_rmaps_base_mapping_policy=slot"),
}
OPENMPI_5 = env(  # mpirun -np 2, rank 1; seen
    "OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_NODE_RANK=1 OMPI_COMM_WORLD_RANK=1"
    " OMPI_COMM_WORLD_SIZE=2 OMPI_UNIVERSE_SIZE=2 OMPI_VERSION=5.0.11 OMPI_WORLD_SIZE=2 PMIX_RANK=1 PRTE_LAUNCHED=1"
)
MPICH = env("HYDI_CONTROL_FD=7 MPI_LOCALNRANKS=2 MPI_LOCALRANKID=1 PMI_FD=11 PMI_RANK=1 PMI_SIZE=2")  # seen
INTEL = env(  # seen
    "MPI_LOCALNRANKS=2 MPI_LOCALRANKID=1 PMI_FD=11 PMI_RANK=1 PMI_SIZE=2 I_MPI_MPIRUN=mpirun I_MPI_HYDRA_TOPOLIB=ipl2"
)
MVAPICH2 = env("MV2_COMM_WORLD_RANK=1 MV2_COMM_WORLD_SIZE=2 MV2_COMM_WORLD_LOCAL_RANK=1 MV2_COMM_WORLD_LOCAL_SIZE=2")
SALLOC = env(  # salloc -N2 -n4 env; seen
    "SLURM_JOBID=4 SLURM_JOB_ID=4 SLURM_JOB_NAME=interactive SLURM_JOB_NODELIST=n[1-2] SLURM_NNODES=2 SLURM_NPROCS=4"
    " SLURM_NTASKS=4 SLURM_TASKS_PER_NODE=3,1"
)
SBATCH = {  # the batch script of sbatch -N2 -n4; seen: SLURM_PROCID is there, a step is not
    **SALLOC,
    **env("SLURM_GTIDS=0 SLURM_JOB_NAME=b.sh SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_PROCID=0"),
}
SRUN = env(  # srun -N2 -n4 bash -c ..., task 3; seen: the job is named bash, and yet these are four tasks
    "SLURM_GTIDS=3 SLURM_JOB_ID=1 SLURM_JOB_NAME=bash SLURM_LOCALID=0 SLURM_NNODES=2 SLURM_NODEID=1 SLURM_NPROCS=4"
    " SLURM_NTASKS=4 SLURM_PROCID=3 SLURM_STEPID=0 SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=4"
    " SLURM_STEP_TASKS_PER_NODE=3,1 SLURM_TASKS_PER_NODE=3,1"
)
SRUN_PMI2 = {**SRUN, **env("PMI_FD=11 PMI_JOBID=10.0 PMI_RANK=3 PMI_SIZE=4")}  # srun --mpi=pmi2; seen
SRUN_SHELL = env(  # srun --pty bash; seen
    "SLURM_GTIDS=0 SLURM_JOB_ID=3 SLURM_JOB_NAME=bash SLURM_LOCALID=0 SLURM_NNODES=1 SLURM_NODEID=0 SLURM_NTASKS=1"
    " SLURM_PROCID=0 SLURM_PTY_PORT=44529 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1"
)
SRUN_SHELL_OF_4 = {  # srun -N2 -n4 --pty bash; seen
    **SRUN,
    **env("SLURM_GTIDS=0,1,2 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_PROCID=0 SLURM_PTY_PORT=41827"),
}
INTERACTIVE_STEP = env(  # salloc with LaunchParameters=use_interactive_step; seen with srun --interactive
    "SLURM_GTIDS=0 SLURM_JOB_ID=15 SLURM_JOB_NAME=interactive SLURM_LOCALID=0 SLURM_NNODES=2 SLURM_NODEID=0"
    " SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_STEP_ID=4294967290 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1"
)
SBATCH_FROM_STEP = env(  # sbatch -n1 called by a task of srun -n3; seen: the batch script still has SLURM_STEP_*
    "SLURM_GTIDS=0 SLURM_JOB_ID=9 SLURM_LOCALID=0 SLURM_NNODES=1 SLURM_NODEID=0 SLURM_NTASKS=1 SLURM_PROCID=0"
    " SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=3 SLURM_STEP_TASKS_PER_NODE=2,1"
)
ORTED_IN_SLURM = env(  # what srun gives Open MPI's daemon inside salloc, and so each rank; seen
    "SLURM_GTIDS=0 SLURM_JOB_ID=11 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NPROCS=1 SLURM_NTASKS=1 SLURM_PROCID=0"
    " SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1"
)
HYDRA_IN_SLURM = env(  # mpirun of MPICH inside salloc -N2 -n4, rank 3; seen
    "MPI_LOCALNRANKS=1 MPI_LOCALRANKID=0 PMI_RANK=3 PMI_SIZE=4 SLURM_GTIDS=1 SLURM_JOB_ID=14 SLURM_LOCALID=0"
    " SLURM_NODEID=1 SLURM_NTASKS=2 SLURM_PROCID=1 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2"
    " SLURM_STEP_TASKS_PER_NODE=1(x2)"
)


@pytest.mark.parametrize(
    ("environ", "launcher", "numbers", "because"),
    [
        (GLOO, "horovodrun-gloo", (1, 2, 1, 2), "HOROVOD_RANK=1 and HOROVOD_SIZE=2"),
        (ELASTIC, "horovod-elastic", (1, 2, 1, 2), "HOROVOD_RANK=1"),
        (OPENMPI_4, "openmpi", (1, 2, 1, 2), "OMPI_COMM_WORLD_RANK=1 .*Open MPI 4 or older"),
        (HOROVODRUN_MPI, "openmpi", (1, 2, 1, 2), "OMPI_COMM_WORLD_RANK"),
        (OPENMPI_5, "openmpi", (1, 2, 1, 2), "Open MPI 5.0.11"),
        (MPICH, "mpich", (1, 2, 1, 2), "PMI_RANK=1 and PMI_SIZE=2"),
        (INTEL, "intel", (1, 2, 1, 2), "PMI_RANK"),
        (MVAPICH2, "mvapich2", (1, 2, 1, 2), "MV2_COMM_WORLD_RANK"),
        (SRUN, "slurm", (3, 4, 0, 1), "SLURM_PROCID=3"),
        (SRUN_PMI2, "slurm", (3, 4, 0, 1), "SLURM_PROCID=3"),
        ({**SRUN, "PMIX_RANK": "3"}, "slurm", (3, 4, 0, 1), "SLURM_PROCID=3"),
        (SRUN_SHELL, "slurm", (0, 1, 0, 1), "SLURM_STEP_NUM_TASKS=1"),
        (INTERACTIVE_STEP, "slurm", (0, 1, 0, 1), "SLURM_STEP_NUM_TASKS=1"),
        (SALLOC, "none", (0, 1, 0, 1), "no variable"),
        (SBATCH, "none", (0, 1, 0, 1), "no variable"),
        (SBATCH_FROM_STEP, "none", (0, 1, 0, 1), "no variable"),
        ({**OPENMPI_4, **ORTED_IN_SLURM}, "openmpi", (1, 2, 1, 2), "OMPI_COMM_WORLD_RANK"),
        ({**OPENMPI_5, **ORTED_IN_SLURM}, "openmpi", (1, 2, 1, 2), "OMPI_COMM_WORLD_RANK"),
        (HYDRA_IN_SLURM, "mpich", (3, 4, 0, 1), "PMI_RANK=3"),
        ({**SBATCH, **GLOO}, "horovodrun-gloo", (1, 2, 1, 2), "HOROVOD_RANK"),  # horovodrun in an sbatch file
        ({**SRUN_SHELL_OF_4, **GLOO}, "horovodrun-gloo", (1, 2, 1, 2), "HOROVOD_RANK"),  # horovodrun in srun's shell
        ({**env("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1"), **GLOO}, "horovodrun-gloo", (1, 2, 1, 2), "HOROVOD"),
        ({}, "none", (0, 1, 0, 1), "no variable"),
    ],
)
def test_launchers(environ, launcher, numbers, because):
    me = identity_from(environ, hostname="here", in_shell=False)
    assert (me.launcher, (me.rank, me.size, me.local_rank, me.local_size)) == (launcher, numbers)
    assert re.search(because, me.because)


def test_every_process_of_a_step_has_its_own_place():
    """charliecloud#197: all ranks are 0 under srun."""
    places = []
    for rank, (node, local) in enumerate([(0, 0), (0, 1), (0, 2), (1, 0)]):
        changed = {"SLURM_PROCID": str(rank), "SLURM_NODEID": str(node), "SLURM_LOCALID": str(local)}
        me = identity_from({**SRUN, **changed, "SLURM_GTIDS": "0,1,2" if node == 0 else "3"})
        places.append((me.rank, me.local_rank, me.local_size))
    assert places == [(0, 0, 3), (1, 1, 3), (2, 2, 3), (3, 0, 1)]


def test_node_rank_is_not_taken_for_the_local_rank():
    """OMPI_COMM_WORLD_NODE_RANK counts the ranks of all jobs on the host."""
    assert identity_from({**OPENMPI_4, "OMPI_COMM_WORLD_NODE_RANK": "7"}).local_rank == 1


def test_host_and_cross_rank():
    me = identity_from({**GLOO, "HOROVOD_HOSTNAME": "host2"}, hostname="here")
    assert (me.host, me.cross_rank, me.cross_size) == ("host2", 0, 1)
    assert identity_from(GLOO, hostname="here").host == "here"  # localhost says nothing
    assert identity_from({**SRUN, "SLURMD_NODENAME": "n2"}, hostname="here").host == "n2"
    assert identity_from(SRUN, hostname="here").job_id == "1"


# ---- alone in a Slurm job -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("environ", [SALLOC, SBATCH], ids=["salloc", "sbatch"])
def test_plain_python_in_a_slurm_job_is_one_process_with_a_note(environ):
    me = identity_from(environ)
    assert me.size == 1
    assert me.notes == (
        "one process alone, in a Slurm job (4 tasks, 2 nodes): nothing has started the others"
        " (srun -n 4 ... or mpirun -np 4 ... would)",
    )


def test_left_over_step_variables_are_noticed():
    assert "left over from the step of 3 tasks" in identity_from(SBATCH_FROM_STEP).notes[0]
    without_ranks_here = {key: value for key, value in SBATCH_FROM_STEP.items() if key != "SLURM_GTIDS"}
    assert identity_from(without_ranks_here).size == 1  # another number of tasks
    assert identity_from({**SBATCH_FROM_STEP, "SLURM_NTASKS": "3"}).size == 1  # other ranks on this node
    same_job = env("SLURM_NTASKS=3 SLURM_GTIDS=0,1 SLURM_NNODES=2")
    assert identity_from({**SBATCH_FROM_STEP, **same_job}).size == 3  # nothing differs: a step


def test_job_name_alone_decides_nothing():
    """Lightning takes a job named bash or interactive for a shell; srun bash -c names real tasks so."""
    for name in ("bash", "interactive", "train"):
        assert identity_from({**SRUN, "SLURM_JOB_NAME": name}).size == 4


def test_interactive_step_says_that_the_job_has_more():
    assert "4 tasks" in identity_from(INTERACTIVE_STEP).notes[0]


def test_shell_of_a_step_of_four_is_asked_about_and_never_waits():
    with pytest.raises(WorldError, match="one process, or rank 0 of 4.*env -u SLURM_STEP_ID.*srun --overlap -n 4"):
        identity_from(SRUN_SHELL_OF_4, in_shell=True)
    assert identity_from(SRUN_SHELL_OF_4, in_shell=False).size == 4  # srun -n4 --pty python: a task itself
    without = {key: value for key, value in SRUN_SHELL_OF_4.items() if key not in ("SLURM_STEP_ID", "SLURM_STEPID")}
    assert identity_from(without, in_shell=True).size == 1  # what the message says to type


def test_sbatch_of_nodes_without_tasks():
    environ = env("SLURM_JOB_ID=7 SLURM_NNODES=2 SLURM_PROCID=0")
    assert "2 nodes" in identity_from(environ).notes[0]


def test_no_launcher_says_how_to_start_one():
    """horovod#2417: size is always 1, script started by plain python."""
    assert "hvd-mnist launch -np 2" in identity_from({}).notes[0]
    assert "torchrun" in identity_from(env("RANK=0 WORLD_SIZE=8")).notes[1]


# ---- half set, contradictory, no numbers ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        (env("HOROVOD_RANK=0"), "HOROVOD_RANK set, but HOROVOD_SIZE is not"),
        (env("HOROVOD_SIZE=2"), "HOROVOD_SIZE set, but HOROVOD_RANK is not"),
        (env("HOROVOD_LOCAL_RANK=0"), "HOROVOD_LOCAL_RANK set, but HOROVOD_"),
        (env("OMPI_COMM_WORLD_RANK=0"), "OMPI_COMM_WORLD_SIZE is not"),
        (env("MV2_COMM_WORLD_SIZE=2"), "MV2_COMM_WORLD_RANK is not"),
        (env("PMI_RANK=0"), "PMI_RANK set, but PMI_SIZE is not -> unset PMI_RANK"),
        (env("PMIX_RANK=0 PMIX_NAMESPACE=prterun"), "PMIX_RANK=0 is set, but nothing says how many"),  # prterun; seen
        ({**GLOO, "HOROVOD_RANK": "2"}, "HOROVOD_RANK=2 and HOROVOD_SIZE=2: a rank lies between"),
        ({**GLOO, "HOROVOD_RANK": "-1"}, "HOROVOD_RANK=-1"),
        ({**GLOO, "HOROVOD_SIZE": "0"}, "HOROVOD_SIZE=0"),
        ({**GLOO, "HOROVOD_RANK": ""}, "HOROVOD_RANK is '', not a whole number"),
        ({**GLOO, "HOROVOD_RANK": "one"}, "HOROVOD_RANK is 'one', not a whole number"),
        ({**GLOO, "HOROVOD_SIZE": "2.0"}, "HOROVOD_SIZE is '2.0'"),
        ({**GLOO, "HOROVOD_SIZE": "9" * 5000}, "HOROVOD_SIZE is '9{40}', not"),
        ({**GLOO, "HOROVOD_LOCAL_RANK": "2"}, "HOROVOD_LOCAL_RANK=2 and HOROVOD_LOCAL_SIZE=2"),
        ({**GLOO, "HOROVOD_LOCAL_SIZE": "3"}, "HOROVOD_LOCAL_SIZE=3 is more than HOROVOD_SIZE=2"),
        ({**GLOO, "HOROVOD_CROSS_RANK": "1"}, "HOROVOD_CROSS_RANK=1 and HOROVOD_CROSS_SIZE=1"),
        ({k: v for k, v in GLOO.items() if "LOCAL_SIZE" not in k}, "HOROVOD_LOCAL_SIZE is not"),
        ({k: v for k, v in GLOO.items() if "LOCAL" not in k}, "every rank of a host would take GPU 0"),
        ({k: v for k, v in GLOO.items() if "RENDEZVOUS" not in k}, "would run each process alone"),
        ({**GLOO, **OPENMPI_4, "OMPI_COMM_WORLD_RANK": "0"}, "contradict.*HOROVOD_RANK=1.*OMPI_COMM_WORLD_RANK=0"),
        ({**OPENMPI_4, "HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"}, "contradict"),  # left in a shell's start file
        ({**OPENMPI_4, **MPICH, "PMI_RANK": "0"}, "contradict.*OMPI_COMM_WORLD_RANK=1.*PMI_RANK=0"),
        ({**SRUN, "HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"}, "contradict.*HOROVOD_RANK=0.*SLURM_PROCID=3"),
        ({**SRUN, "SLURM_PROCID": "x"}, "SLURM_PROCID is 'x'"),
        ({**SRUN, "SLURM_PROCID": "4"}, "SLURM_PROCID=4 and SLURM_STEP_NUM_TASKS=4"),
        ({**SRUN, "SLURM_LOCALID": "1"}, "SLURM_LOCALID=1 and SLURM_STEP_TASKS_PER_NODE=1"),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "three"}, "SLURM_STEP_TASKS_PER_NODE='three'"),
        ({**SALLOC, "SLURM_NTASKS": "many"}, "SLURM_NTASKS is 'many'"),
        ({k: v for k, v in SRUN.items() if k != "SLURM_PROCID"}, "SLURM_STEP_NUM_TASKS are set, but"),
    ],
)
def test_misleading_variables_are_errors(environ, says):
    with pytest.raises(WorldError, match=says) as caught:
        identity_from(environ, in_shell=False)
    assert caught.value.hint and "\n" not in str(caught.value) and caught.value.exit_status == 7


def test_srun_with_horovods_variables_is_slurm():
    """``launch --launcher srun`` sets HOROVOD_* itself, beside Slurm's."""
    environ = {
        **SRUN,
        **env(
            "HOROVOD_RANK=3 HOROVOD_SIZE=4 HOROVOD_LOCAL_RANK=0 HOROVOD_LOCAL_SIZE=1 HOROVOD_GLOO_RENDEZVOUS_ADDR=n1"
        ),
    }
    me = identity_from(environ)
    assert (me.launcher, me.rank, me.size) == ("slurm", 3, 4)


def test_old_hydra_without_local_rank():
    me = identity_from(env("PMI_RANK=1 PMI_SIZE=2"))
    assert me.local_rank is None and "does not say the local rank" in me.notes[0]


# ---- launcher against Horovod --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "rank", "size", "says"),
    [
        (OPENMPI_4, 0, 1, "openmpi started 2 ranks.*Horovod counts 1.*copy of its own.*horovodrun --check-build"),
        (MPICH, 0, 1, "mpich started 2 ranks.*built without MPI or with another MPI"),  # horovod#870, #2588
        (SRUN, 0, 1, "rank 3 on here: slurm started 4 ranks.*-> start it with: srun hvd-mnist launch"),
        (GLOO, 0, 1, "HOROVOD_CONTROLLER"),
        (OPENMPI_4, 1, 3, "ranks are missing"),
        (OPENMPI_4, 0, 2, "openmpi says rank 1.*but Horovod says rank 0"),
    ],
)
def test_launcher_and_horovod_disagree(environ, rank, size, says):
    with pytest.raises(WorldError, match=says):
        check_agrees(identity_from(environ, hostname="here"), rank, size)


def test_launcher_and_horovod_agree():
    check_agrees(identity_from(OPENMPI_4), 1, 2)
    check_agrees(identity_from({}), 0, 1)
    check_agrees(identity_from(SALLOC), 0, 1)
    check_agrees(identity_from(ELASTIC), 0, 1)  # an elastic job may shrink
    check_agrees(identity_from({}), 3, 4)  # a launcher that is not known here: Horovod knows better


def test_identity_reads_as_one_line_and_as_json():
    me = identity_from(OPENMPI_5, hostname="h")
    assert str(me) == (
        "rank 1 of 2, local rank 1 of 2 on h, launcher openmpi:"
        " OMPI_COMM_WORLD_RANK=1 and OMPI_COMM_WORLD_SIZE=2 (Open MPI 5.0.11)"
    )
    assert Identity(**json.loads(json.dumps(me.as_dict())) | {"notes": ()}) == me
