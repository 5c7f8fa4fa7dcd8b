# 6 ranks on 2 hosts
# launcher: mpirun, because --launcher mpirun
# defaults: PYTHONUNBUFFERED=1, TF_CPP_MIN_LOG_LEVEL=2, HOROVOD_GLOO_TIMEOUT_SECONDS=120
# PATH: /venv/bin comes first, the folder of this Python
# network: eth0, whose network 10.0.0.0/24 all hosts share, by the route to h2 (10.0.0.2)
# mpi: /opt/mpich/bin/mpirun is mpich 5.0.2, from its --version
# ssh: through /venv/hvd_mnist/launch/checked_ssh/ssh: no prompt, 10 s to connect
# environment: 4 of 6 variables, by the allow-list; -x NAME adds one
#
# rank  host  local rank  local size  cross rank  cross size  slot
# 0     h1    0           4           0           2           0
# 1     h1    1           4           0           2           1
# 2     h1    2           4           0           1           2
# 3     h1    3           4           0           1           3
# 4     h2    0           2           1           2           0
# 5     h2    1           2           1           2           1
cd /home/ann/mnist &&
    env -i HOME=/home/ann HOROVOD_GLOO_TIMEOUT_SECONDS=120 LANG=en_US.UTF-8 NCCL_DEBUG=INFO \
    PATH=/venv/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 TF_CPP_MIN_LOG_LEVEL=2 \
    /opt/mpich/bin/mpirun -np 6 -hosts h1:4,h2:2 -bind-to none -prepend-rank -launcher ssh \
    -launcher-exec /venv/hvd_mnist/launch/checked_ssh/ssh -iface eth0 \
    -genvlist HOME,HOROVOD_GLOO_TIMEOUT_SECONDS,LANG,NCCL_DEBUG,PATH,PYTHONUNBUFFERED,TF_CPP_MIN_LOG_LEVEL \
    /venv/bin/python -m hvd_mnist.launch.guard --subnet 10.0.0.0/24 --chdir /home/ann/mnist -- /venv/bin/python \
    -m hvd_mnist train --epochs 3
