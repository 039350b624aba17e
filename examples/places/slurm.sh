#!/bin/bash
# Three workers on two nodes: `sbatch examples/places/slurm.sh`. The secret lies where both nodes see it.
#SBATCH --nodes=2
#SBATCH --ntasks=3
#SBATCH --output=slurm-%j.out
umask 077
export PACELINE_SECRET_FILE=$PWD/secret-$SLURM_JOB_ID OMP_NUM_THREADS=1
openssl rand -hex 32 > "$PACELINE_SECRET_FILE"
srun python "${1:-examples/plain_loop.py}"
rm "$PACELINE_SECRET_FILE"
