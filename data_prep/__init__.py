"""From raw corpora to binarised data, equal line for line to the classic Perl recipes, without Perl.

Each module has one subject. Text: ``moses`` (tokeniser), ``normalize``, ``unicode14``, and ``tokenizer``,
the command line over them. Subwords: ``bpe``, ``learn_bpe``, ``spm``. Files: ``download``, ``extract``, ``readers``,
``manifest``, ``binarize``. Work: ``parallel``, ``pairs``, ``errors``. ``recipes`` describes the corpora,
``pipeline`` runs a recipe for translation and ``lm`` one for language modelling, both in the ``stages`` of a folder;
``corpora`` is the command line. The package stands alone: it imports nothing from ``powernorm_fairseq``.
"""
