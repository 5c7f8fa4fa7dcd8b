#!/bin/bash
# 8 ranks on 2 nodes: qsub FILE. PBS writes the hosts to $PBS_NODEFILE, one line a rank.
#PBS -N hvd-mnist
#PBS -l select=2:ncpus=4:mpiprocs=4
#PBS -j oe
# With GPUs: select=2:ncpus=4:mpiprocs=4:ngpus=4
set -euo pipefail
cd "$PBS_O_WORKDIR"
# The environment that has hvd-mnist, on a file system that all nodes share:
source "${VENV:-.venv}/bin/activate"
hvd-mnist launch --launcher mpirun --hostfile "$PBS_NODEFILE" -- train --epochs 10
