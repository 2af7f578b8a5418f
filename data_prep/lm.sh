#!/usr/bin/env bash
# Prepares text for language modelling. See --help.
set -euo pipefail

usage() {
    cat <<'HELP'
Usage: data_prep/lm.sh ptb|wikitext103 --out DIR [--from DIR]
       data_prep/lm.sh text --train FILE... --valid FILE... --test FILE... --out DIR [options]

ptb           Penn Treebank as Mikolov prepared it (simple-examples.tgz): 10,000 words,
              929,589 / 73,760 / 82,430 tokens with the ends of lines
wikitext103   WikiText-103 (wikitext-103-v1.zip): 267,735 words, 103,227,021 / 217,646 / 245,569 tokens
text          any text, plain or .gz

  --out DIR         where the results go: tok/, bin/, manifest.json; bpe/ with subwords
  --from DIR        archive already downloaded, under its published name (default: fetch it to DIR/archives)
  --mirror URL      folder on a server to try before the published addresses; may be repeated
  --workers N       processes (default: all cores)
  --until STAGE     last stage to do: tok, bpe or bin (default: bin)
  --overwrite       redo stages whose options have changed
  --dry-run         say what would be done

For text:
  --tokenize LANG   tokenise as Moses does, without XML escapes (default: words are what blanks separate)
  --lowercase       lower-case the words
  --min-count N     words that train has less often become <unk> (default: 1)
  --max-words N     at most so many words, the most frequent ones
  --bpe-tokens N    split words into subwords, with so many merges (default: do not)

A second run goes on after the last finished stage. PYTHON names the interpreter
to use; otherwise it is .venv/bin/python of the checkout, else python3 from PATH.
HELP
}

# shellcheck source=scripts/python.sh
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/python.sh"
answer_help "$@"
exec_module data_prep.lm "$@"
