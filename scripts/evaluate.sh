#!/usr/bin/env bash
# Decodes a test set with a checkpoint and scores it; powernorm_fairseq/experiments/evaluate.py does the work.
set -euo pipefail

usage() {
    cat <<'EOF'
usage: scripts/evaluate.sh --data BIN --checkpoint FILE --preset PRESET [options] [-- fairseq-generate flags]

Decodes with the preset's beam and length penalty, puts the hypotheses in corpus order, joins subwords and scores.
Works on GPUs and on a CPU alone. Run again with nothing changed, it prints the finished result at once.

  --data BIN           output folder of fairseq-preprocess
  --checkpoint FILE    what to decode with, for example an averaged checkpoint
  --preset PRESET      iwslt14   beam 5, length penalty 1.0; tokenised BLEU and sacreBLEU, lower-cased
                       wmt14     beam 4, length penalty 0.6; tokenised, compound-split, sacreBLEU
                       multi30k  beam 5, length penalty 1.0; tokenised, sacreBLEU, lower-cased
                       demo      the same with case
                       text      beam 5, length penalty 1.0; tokenised, sacreBLEU, chrF; case as the text has it
  --out DIR            hyp.txt, ref.txt, result.json, and fairseq's generate.log and messages.log
                       (default: CHECKPOINT without .pt, then .PRESET.SUBSET)
  --subset NAME        part of the data (default: test)
  --batch-size N       sentences in a batch; changes speed and memory only
  --max-tokens N       tokens in a batch (default, with neither: 12000)
  --source-lang LANG   (default: the checkpoint's)
  --target-lang LANG   (default: the checkpoint's)
  --bpe KIND           subword-nmt, sentencepiece or none (default: what the dictionary holds)
  --ref FILE...        references, prepared as the data (default: tok/ beside BIN, else what fairseq prints)
  --raw-ref FILE...    references as published, for sacreBLEU and compounds (default: ref/ beside BIN)
  --overwrite          replace results of another checkpoint or other flags
  --dry-run            only print the call of fairseq-generate
  --help               this text

PYTHON names the interpreter to use; otherwise it is .venv/bin/python of the checkout, else python3 from PATH.
EOF
}

# shellcheck source=scripts/python.sh
source "$(dirname "${BASH_SOURCE[0]}")/python.sh"
[[ $# -gt 0 ]] || { usage; exit 1; }
answer_help "$@"
exec_module powernorm_fairseq.experiments.evaluate "$@"
