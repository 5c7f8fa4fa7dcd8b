#!/usr/bin/env bash
# One process on one GPU (or the CPU), no launcher: to debug. Any option of `hvd-mnist train` may follow.
set -euo pipefail
CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES-0} exec hvd-mnist train --steps 100 "$@"
