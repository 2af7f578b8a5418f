#!/usr/bin/env bash
# Prepares WMT14 English-German. See --help.
set -euo pipefail

usage() {
    cat <<'HELP'
Usage: data_prep/wmt14.sh --out DIR [--from DIR] [--workers N] [--bpe subword-nmt|sentencepiece] [--bpe-tokens N]

WMT14 English-German from Europarl v7, Common Crawl and News Commentary: punctuation normalised, hyphens split,
1 to 80 tokens; valid is newstest2013, test newstest2014.

  --out DIR         where the results go: tok/, bpe/ (with codes), bin/, manifest.json
  --from DIR        archives already downloaded, under their published names (default: fetch them to DIR/archives)
  --workers N       processes (default: all cores)
  --bpe KIND        subword-nmt (default) or sentencepiece
  --bpe-tokens N    merges, or pieces of sentencepiece (default: 32764)
  --news-commentary V
                    v12 as in the PowerNorm release (default), or v9 for the classic WMT14 set
  --valid-from-train
                    every 100th line of the cleaned training text is valid, in place of newstest2013
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
exec_module data_prep.pipeline wmt14 "$@"
