#!/usr/bin/env bash
# How many ranks `make train` starts: one a GPU, or 2 where there is none (DEVICE=cpu: none is looked for).
gpus=0
[ "${DEVICE:-}" = cpu ] || gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
echo $((gpus > 0 ? gpus : 2))
