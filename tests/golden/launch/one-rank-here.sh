# 1 rank on 1 host
# launcher: alone, because one rank on this machine needs no launcher
# defaults: PYTHONUNBUFFERED=1, TF_CPP_MIN_LOG_LEVEL=2
# PATH: /venv/bin comes first, the folder of this Python
# environment: 4 of 6 variables, by the allow-list; -x NAME adds one
#
# rank  host       local rank  local size  cross rank  cross size  slot
# 0     localhost  0           1           0           1           0
cd /home/ann/mnist &&
    env -i HOME=/home/ann LANG=en_US.UTF-8 NCCL_DEBUG=INFO PATH=/venv/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 \
    TF_CPP_MIN_LOG_LEVEL=2 \
    /venv/bin/python -m hvd_mnist train --epochs 3
