# 4 ranks on 2 hosts
# launcher: srun, because this is a Slurm allocation, and srun needs neither MPI nor ssh
# defaults: PYTHONUNBUFFERED=1, TF_CPP_MIN_LOG_LEVEL=2, HOROVOD_GLOO_TIMEOUT_SECONDS=120
# PATH: /venv/bin comes first, the folder of this Python
# no MPI: rank 0 hosts Horovod's rendezvous and the others meet it over Gloo (--mpi=none)
# --cpus-per-task: since Slurm 22.05 srun does not take it over from the allocation by itself
# environment: 4 of 10 variables, by the allow-list; -x NAME adds one
#
# rank  host   local rank  local size  cross rank  cross size  slot
# 0     node1  0           3           0           2           0
# 1     node1  1           3           0           1           1
# 2     node1  2           3           0           1           2
# 3     node2  0           1           1           2           0
cd /home/ann/mnist &&
    env -i HOME=/home/ann HOROVOD_GLOO_TIMEOUT_SECONDS=120 LANG=en_US.UTF-8 NCCL_DEBUG=INFO \
    PATH=/venv/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 SLURM_CPUS_PER_TASK=8 SLURM_JOB_ID=17 \
    SLURM_JOB_NODELIST='node[1-2]' SLURM_TASKS_PER_NODE='2(x2)' TF_CPP_MIN_LOG_LEVEL=2 \
    /usr/bin/srun --nodes=2 --ntasks=4 '--nodelist=node[1-2]' --distribution=block --mpi=none --label \
    --kill-on-bad-exit=1 --cpus-per-task=8 \
    --export=HOME,HOROVOD_GLOO_TIMEOUT_SECONDS,LANG,NCCL_DEBUG,PATH,PYTHONUNBUFFERED,TF_CPP_MIN_LOG_LEVEL /venv/bin/python \
    -m hvd_mnist.launch.guard -- /venv/bin/python -m hvd_mnist train --epochs 3
