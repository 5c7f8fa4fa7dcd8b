# 2 ranks on 1 host
# launcher: mpirun, because --launcher mpirun
# defaults: PYTHONUNBUFFERED=1, TF_CPP_MIN_LOG_LEVEL=2, HOROVOD_GLOO_TIMEOUT_SECONDS=120
# PATH: /venv/bin comes first, the folder of this Python
# mpi: /opt/ompi/bin/mpirun is openmpi-4 4.1.8, from its --version
# binding: none, since Open MPI would give a rank one core, and TensorFlow has many threads
# environment: 4 of 6 variables, by the allow-list; -x NAME adds one
#
# rank  host       local rank  local size  cross rank  cross size  slot
# 0     localhost  0           2           0           1           0
# 1     localhost  1           2           0           1           1
cd /home/ann/mnist &&
    env -i HOME=/home/ann HOROVOD_GLOO_TIMEOUT_SECONDS=120 LANG=en_US.UTF-8 NCCL_DEBUG=INFO \
    PATH=/venv/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 TF_CPP_MIN_LOG_LEVEL=2 \
    /opt/ompi/bin/mpirun -np 2 -H localhost:2 --bind-to none --map-by slot --tag-output -x HOME \
    -x HOROVOD_GLOO_TIMEOUT_SECONDS -x LANG -x NCCL_DEBUG -x PATH -x PYTHONUNBUFFERED -x TF_CPP_MIN_LOG_LEVEL \
    /venv/bin/python -m hvd_mnist.launch.guard -- /venv/bin/python -m hvd_mnist train --epochs 3
