# 8 ranks on 2 hosts
# launcher: horovodrun, because /venv/bin/horovodrun is there, and over Gloo it needs no MPI
# defaults: PYTHONUNBUFFERED=1, TF_CPP_MIN_LOG_LEVEL=2, HOROVOD_GLOO_TIMEOUT_SECONDS=120
# PATH: /venv/bin comes first, the folder of this Python
# network: eth0, whose network 10.0.0.0/24 all hosts share, by the route to h2 (10.0.0.2)
# hosts: h1:4,h2:4, each with the ranks that it holds (horovodrun starts one rank for each slot)
# ssh: through /venv/hvd_mnist/launch/checked_ssh/ssh: no prompt, 10 s to connect, host keys as your ssh configuration says (horovodrun itself turns their check off)
# environment: 6 of 6 variables, by the allow-list; -x NAME adds one
# environment: AWS_SECRET_ACCESS_KEY looks like a secret; on the hosts, `ps` may show it to other users
#
# rank  host  local rank  local size  cross rank  cross size  slot
# 0     h1    0           4           0           2           0
# 1     h1    1           4           0           2           1
# 2     h1    2           4           0           2           2
# 3     h1    3           4           0           2           3
# 4     h2    0           4           1           2           0
# 5     h2    1           4           1           2           1
# 6     h2    2           4           1           2           2
# 7     h2    3           4           1           2           3
cd /home/ann/mnist &&
    env -i AWS_SECRET_ACCESS_KEY="$AWS_SECRET_ACCESS_KEY" HOME=/home/ann HOROVOD_GLOO_TIMEOUT_SECONDS=120 \
    LANG=en_US.UTF-8 MODE='a b' NCCL_DEBUG=INFO PATH=/venv/hvd_mnist/launch/checked_ssh:/venv/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1 TF_CPP_MIN_LOG_LEVEL=2 \
    /venv/bin/horovodrun --gloo -np 8 -H h1:4,h2:4 --network-interfaces eth0 --start-timeout 62 /venv/bin/python \
    -m hvd_mnist.launch.guard --subnet 10.0.0.0/24 --chdir /home/ann/mnist -- /venv/bin/python -m hvd_mnist train \
    --epochs 3
