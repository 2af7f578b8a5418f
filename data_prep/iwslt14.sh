#!/usr/bin/env bash
# Prepares IWSLT14 German-English. See --help.
set -euo pipefail

usage() {
    cat <<'HELP'
Usage: data_prep/iwslt14.sh --out DIR [--from DIR] [--workers N] [--bpe subword-nmt|sentencepiece] [--bpe-tokens N]

IWSLT14 German-English from de-en.tgz: Moses tokens, lower-cased, cleaned at 1 to 175 tokens and ratio 1.5;
every 23rd line is valid; 160,239 / 7,283 / 6,750 pairs.

  --out DIR         where the results go: tok/, bpe/ (with codes), bin/, manifest.json
  --from DIR        archives already downloaded, under their published names (default: fetch them to DIR/archives)
  --workers N       processes (default: all cores)
  --bpe KIND        subword-nmt (default) or sentencepiece
  --bpe-tokens N    merges, or pieces of sentencepiece (default: 10000)
  --mirror URL      folder on a server to try before the published addresses; may be repeated
  --until STAGE     last stage to do: tok, codes, bpe or bin (default: bin)
  --overwrite       redo stages whose options have changed
  --lenient         accept empty lines, carriage returns and byte order marks, as the Perl recipe does
  --dry-run         say what would be done

A second run goes on after the last finished stage. PYTHON names the interpreter
to use; otherwise it is .venv/bin/python of the checkout, else python3 from PATH.
HELP
}

# shellcheck source=scripts/python.sh
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/python.sh"
answer_help "$@"
exec_module data_prep.pipeline iwslt14 "$@"
