# 4 ranks on 2 hosts
# launcher: mpirun, because --launcher mpirun
# defaults: PYTHONUNBUFFERED=1, TF_CPP_MIN_LOG_LEVEL=2, HOROVOD_GLOO_TIMEOUT_SECONDS=120
# PATH: /venv/bin comes first, the folder of this Python
# network: eth0, whose network 10.0.0.0/24 all hosts share, by the route to h2 (10.0.0.2)
# mpi: /opt/ompi/bin/mpirun is openmpi-4 4.1.8, from its --version
# binding: none, since Open MPI would give a rank one core, and TensorFlow has many threads
# prefix: /opt/ompi, so that the other hosts find Open MPI's daemon (an ssh session has a short PATH)
# ssh: no prompt, 10 s to connect; host keys as your ssh configuration says
# environment: 4 of 10 variables, by the allow-list; -x NAME adds one
#
# rank  host   local rank  local size  cross rank  cross size  slot
# 0     node1  0           2           0           2           0
# 1     node1  1           2           0           2           1
# 2     node2  0           2           1           2           0
# 3     node2  1           2           1           2           1
cd /home/ann/mnist &&
    env -i HOME=/home/ann HOROVOD_GLOO_TIMEOUT_SECONDS=120 LANG=en_US.UTF-8 NCCL_DEBUG=INFO \
    PATH=/venv/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 SLURM_CPUS_PER_TASK=8 SLURM_JOB_ID=17 \
    SLURM_JOB_NODELIST='node[1-2]' SLURM_TASKS_PER_NODE='2(x2)' TF_CPP_MIN_LOG_LEVEL=2 \
    /opt/ompi/bin/mpirun -np 4 -H node1:2,node2:2 --bind-to none --map-by slot --tag-output --prefix /opt/ompi \
    --mca plm_rsh_agent \
    'ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3' \
    --mca oob_tcp_if_include 10.0.0.0/24 --mca btl_tcp_if_include 10.0.0.0/24 --mca oob_tcp_keepalive_time 10 \
    --mca oob_tcp_keepalive_intvl 5 --mca oob_tcp_keepalive_probes 2 -x HOME -x HOROVOD_GLOO_TIMEOUT_SECONDS \
    -x LANG -x NCCL_DEBUG -x PATH -x PYTHONUNBUFFERED -x TF_CPP_MIN_LOG_LEVEL /venv/bin/python \
    -m hvd_mnist.launch.guard --subnet 10.0.0.0/24 --chdir /home/ann/mnist -- /venv/bin/python -m hvd_mnist train \
    --epochs 3
