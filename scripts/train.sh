#!/usr/bin/env bash
# Trains a model by one of the project's recipes; powernorm_fairseq/experiments/train.py does the work.
set -euo pipefail

usage() {
    cat <<'USAGE'
usage: scripts/train.sh --preset PRESET --norm NORM --data BIN --save-dir DIR [options] [-- fairseq-train flags]

Trains with the recipe of configs/PRESET_NORM.yaml, or goes on with a training that was stopped: the same command, as
often as needed. It runs on all GPUs it sees, on a CPU where there is none, and as a part of a larger training under
srun, torchrun, or with NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT set. An update has the recipe's number of tokens
on any number of processes, or a sentence says how many: gradients are accumulated, or batches divided.

  --preset PRESET   iwslt14, wmt14, multi30k or demo; language models: ptb, wikitext103 or lm_tiny
  --norm NORM       norm of the encoder, or of the language model: bn, brn, gn, ln, mabn, pn, pnv or rms
  --data BIN        output folder of fairseq-preprocess
  --save-dir DIR    checkpoints, train.log (rank-N.log of the other processes), command.txt, environment.json,
                    experiment.json and status.json
  --nproc N         processes on this machine (default: one for each GPU, or one)
  --precision P     fp32, fp16 or bf16 (default: fp32, as the authors' scripts)
  --seed S          of weights, dropout and data order (default: 1)
  --tensorboard     write curves to DIR/tensorboard
  --save-minutes M  save so long after the last checkpoint, also within an epoch (default: 15; 0: as the recipe says)
  --hang-minutes M  end a training that has made no progress for so long (default: POWERNORM_HANG_MINUTES, or 30;
                    0: never)
  --restart         start anew; what is there moves to DIR/before-N
  --dry-run         check everything and print the calls of fairseq-train
  --help            this text

SIGUSR1, SIGTERM, SIGHUP and Ctrl-C stop training after the update it is at, with a checkpoint and exit status 75; Ctrl-C
a second time stops at once. What follows -- wins over the recipe; --no-NAME takes a switch of the recipe back.
PYTHON names the interpreter to use; otherwise it is .venv/bin/python of the checkout, else python3 from PATH.
USAGE
}

# shellcheck source=scripts/python.sh
source "$(dirname "${BASH_SOURCE[0]}")/python.sh"
[[ $# -gt 0 ]] || { usage; exit 1; }
answer_help "$@"
trap '' USR1 TERM  # until Python listens, a signal that would end it is ignored
exec_module powernorm_fairseq.experiments.train "$@"
