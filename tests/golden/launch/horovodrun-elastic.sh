# 2 ranks on 2 hosts
# launcher: horovodrun, because it alone lets ranks come and go
# defaults: PYTHONUNBUFFERED=1, TF_CPP_MIN_LOG_LEVEL=2, HOROVOD_GLOO_TIMEOUT_SECONDS=120
# PATH: /venv/bin comes first, the folder of this Python
# network: eth0, whose network 10.0.0.0/24 all hosts share, by the route to h2 (10.0.0.2)
# elastic: starts when 2 slots are there, goes on with 1 or more, uses 4 at most
# elastic: a host where a rank failed is left out for 10 to 300 s, longer each time; after 10 changes of ranks the job fails
# network: eth0 (given, since Horovod would else wait for a second host)
# ssh: through /venv/hvd_mnist/launch/checked_ssh/ssh: no prompt, 10 s to connect, host keys as your ssh configuration says (horovodrun itself turns their check off)
# environment: 4 of 6 variables, by the allow-list; -x NAME adds one
#
# rank  host  local rank  local size  cross rank  cross size  slot
# 0     h1    0           1           0           2           0
# 1     h2    0           1           1           2           0
cd /home/ann/mnist &&
    env -i HOME=/home/ann HOROVOD_GLOO_TIMEOUT_SECONDS=120 LANG=en_US.UTF-8 NCCL_DEBUG=INFO \
    PATH=/venv/hvd_mnist/launch/checked_ssh:/venv/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 TF_CPP_MIN_LOG_LEVEL=2 \
    /venv/bin/horovodrun --gloo -np 2 --min-np 1 --max-np 4 \
    --host-discovery-script ''"'"'/home/ann/my hosts.sh'"'"'' --slots-per-host 1 --reset-limit 10 \
    --blacklist-cooldown-range 10 300 --network-interfaces eth0 --start-timeout 62 /venv/bin/python \
    -m hvd_mnist.launch.guard --subnet 10.0.0.0/24 --chdir /home/ann/mnist -- /venv/bin/python -m hvd_mnist train \
    --epochs 3
