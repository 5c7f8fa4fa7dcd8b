#!/usr/bin/env bash
# Two machines of four GPUs with Horovod's own launcher, over ssh and Gloo. `hvd-mnist launch` does it with host
# keys checked and -np below the slots. HOSTS=h1:2,h2:2 NP=4 scripts/train_two_nodes.sh --epochs 10
set -euo pipefail
exec horovodrun --gloo -np "${NP:-8}" -H "${HOSTS:-host1:4,host2:4}" hvd-mnist train "$@"
