#!/usr/bin/env bash
# An HPC system with MPI: HOSTFILE=hosts scripts/train_mpirun.sh --epochs 10. The options for the mpirun that is
# there are written by launch; to see them: DRY=--dry-run scripts/train_mpirun.sh
set -euo pipefail
exec hvd-mnist launch --launcher mpirun --hostfile "${HOSTFILE:-hostfiles/openmpi}" ${DRY:-} -- train "$@"
