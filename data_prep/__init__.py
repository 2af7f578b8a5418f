"""From raw corpora to binarised data, equal line for line to the classic Perl recipes, without Perl.

Each module has one subject. Text: ``moses`` (tokeniser), ``normalize``, ``clean``, ``unicode14``, and ``tokenizer``,
the command line over them. Subwords: ``bpe``, ``learn_bpe``, ``spm``. Files: ``download``, ``extract``, ``readers``,
``manifest``, ``binarize``. Work: ``parallel``, ``pairs``, ``progress``, ``stages``, ``errors``. ``recipes`` describes
the corpora, ``pipeline`` runs a recipe and ``corpora`` is its command line; ``lm_recipes`` and ``lm`` are the same for
language modelling. The package stands alone: it imports nothing from ``powernorm_fairseq``.
"""
