#!/bin/bash
# One training run on several hosts with SLURM, one process per GPU.
#
#   sbatch experiments/cluster/slurm.sh tag_continuous --workdir runs/big --num-envs 8000
#   sbatch --nodes=4 experiments/cluster/slurm.sh PRESET --workdir DIR [--FIELD VALUE ...]
#
# Submit it from the root of the repository. All hosts need access to the repository and to the run folder. The number
# of processes must divide num_blocks (default: gcd(num_envs, 8)); with 16 GPUs use --num-blocks 16. Set WDJAX to use
# another executable than .venv/bin/wdjax.
#
# srun provides the addresses of the processes. Two minutes before the time limit SLURM sends SIGTERM. The run saves and
# ends with status 130, and this script requeues the job, which continues from the newest checkpoint. If a process dies,
# the others end within a minute and the job fails. Submit the same command again to continue.
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

# Each task sees all GPUs of its host and jax assigns the n-th GPU to the n-th task, so --gpus-per-task is not set.
status=0
srun --gpu-bind=none "${WDJAX:-.venv/bin/wdjax}" train "$@" --resume || status=$?

if ((status == 130)); then
    echo "Stopped and saved. Requeueing the job."
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
