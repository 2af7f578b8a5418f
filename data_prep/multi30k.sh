#!/usr/bin/env bash
# Prepares Multi30k German-English. See --help.
set -euo pipefail

usage() {
    cat <<'HELP'
Usage: data_prep/multi30k.sh --out DIR [--from DIR] [--workers N] [--bpe subword-nmt|sentencepiece] [--bpe-tokens N]

Multi30k task 1, German-English, from train.de.gz and the like: lower-cased, punctuation normalised, Moses tokens;
29,000 / 1,014 / 1,000 pairs.

  --out DIR         where the results go: tok/, bpe/ (with codes), bin/, manifest.json
  --from DIR        archives already downloaded, under their published names (default: fetch them to DIR/archives)
  --workers N       processes (default: all cores)
  --bpe KIND        subword-nmt (default) or sentencepiece
  --bpe-tokens N    merges, or pieces of sentencepiece (default: 10000)
  --test-set YEAR   2016 (default) or 2017, both Flickr
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
exec_module data_prep.pipeline multi30k "$@"
