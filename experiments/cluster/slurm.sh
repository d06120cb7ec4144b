#!/bin/bash
# One training run on several hosts under SLURM, a process for every GPU.
#
#   sbatch experiments/cluster/slurm.sh tag_continuous --workdir runs/big --num-envs 8000
#   sbatch --nodes=4 experiments/cluster/slurm.sh PRESET --workdir DIR [--FIELD VALUE ...]
#
# Submit it from the root of the repository, which all hosts must see, and so must they the folder of the run. The number
# of processes must divide num_blocks (default: gcd(num_envs, 8)): with 16 GPUs, say --num-blocks 16.
# WDJAX names another wdjax than .venv/bin/wdjax.
#
# The processes find each other by what srun tells them: no address is needed. Two minutes before the time is over SLURM
# sends SIGTERM; the run saves, ends with status 130, and this script puts the job back into the queue, where it goes on
# from its newest checkpoint. Where a process dies the others end within a minute, and the job fails: the same command
# again goes on likewise.
#
#SBATCH --job-name=wdjax
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append

set -euo pipefail

if (($# == 0)); then
    echo "usage: sbatch $0 PRESET --workdir DIR [--FIELD VALUE ...]" >&2
    exit 2
fi

# Every task sees all GPUs of its host: jax gives the n-th task the n-th of them (so no --gpus-per-task).
status=0
srun --gpu-bind=none "${WDJAX:-.venv/bin/wdjax}" train "$@" --resume || status=$?

if ((status == 130)); then
    echo "stopped and saved: back into the queue"
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
