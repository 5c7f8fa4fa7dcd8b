#!/usr/bin/env bash
# All GPUs of this machine, or all cores: NP=2 scripts/train_one_node.sh --epochs 10
set -euo pipefail
exec hvd-mnist launch ${NP:+-np "$NP" -H "localhost:$NP"} -- train "$@"
