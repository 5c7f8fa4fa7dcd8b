# 2 ranks on 1 host
# launcher: horovodrun, because /venv/bin/horovodrun is there, and over Gloo it needs no MPI
# defaults: PYTHONUNBUFFERED=1, TF_CPP_MIN_LOG_LEVEL=2, HOROVOD_GLOO_TIMEOUT_SECONDS=120
# PATH: /venv/bin comes first, the folder of this Python
# hosts: localhost:2, each with the ranks that it holds (horovodrun starts one rank for each slot)
# environment: 4 of 6 variables, by the allow-list; -x NAME adds one
#
# rank  host       local rank  local size  cross rank  cross size  slot
# 0     localhost  0           2           0           1           0
# 1     localhost  1           2           0           1           1
cd /home/ann/mnist &&
    env -i HOME=/home/ann HOROVOD_GLOO_TIMEOUT_SECONDS=120 LANG=en_US.UTF-8 NCCL_DEBUG=INFO \
    PATH=/venv/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 TF_CPP_MIN_LOG_LEVEL=2 \
    /venv/bin/horovodrun --gloo -np 2 -H localhost:2 /venv/bin/python -m hvd_mnist.launch.guard \
    -- /venv/bin/python -m hvd_mnist train --epochs 3
