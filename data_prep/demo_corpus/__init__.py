"""The German-English corpus of the demo: drawn from a small grammar, so that nothing has to be downloaded.

Each pair is one structure, written down by the rules of both languages. German has genders, cases, declined adjectives,
separable verbs, the verb in second place or at the end, and objects before the subject; English has its own order, *do*
and *a* or *an*. German to English is a function: Präteritum and Perfekt both become a simple past.

``lexicon.tsv`` has the words, ``structure`` what a sentence is made of, ``german`` and ``english`` write it down,
``sentences`` draws it, and ``corpus`` writes the files.
"""

from data_prep.demo_corpus.corpus import generate, write_corpus

__all__ = ["generate", "write_corpus"]
