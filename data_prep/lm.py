"""Prepares text for language modelling: fetch, unpack, check, split into words, learn and apply subwords, binarise.

Results: ``OUT/tok/{train,valid,test}.txt``, with subwords also ``OUT/bpe/`` (and ``codes``), ``OUT/bin/`` (as
``fairseq-preprocess --only-source`` writes it) and ``OUT/manifest.json``. Stages, second runs and errors are those of
``data_prep.pipeline``.
"""

import functools
import logging
from dataclasses import dataclass
from typing import Dict, List, NamedTuple, Optional

from data_prep import bpe
from data_prep.download import file_sha256
from data_prep.errors import DataPrepError
from data_prep.manifest import make_key, writing
from data_prep.moses import get_tokenizer
from data_prep.normalize import lowercase
from data_prep.parallel import WorkerPool, progress_bar, read_chunks
from data_prep.recipes import SPLITS, Recipe, bare_files
from data_prep.stages import RunOptions, StagedRun, option
from data_prep.tokenizer import Steps, prepare_text

logger = logging.getLogger("data_prep")

UNKNOWN = "<unk>"
#: Raised when a change of this program changes its results, so that earlier ones are not taken for new ones.
FORMAT = 2


@dataclass(frozen=True)
class Options(RunOptions):
    """How a corpus is prepared; all but ``until`` is for text of one's own."""

    until: str = option("bin", "last stage to do (default: %(default)s)", choices=("tok", "bpe", "bin"))
    tokenize: Optional[str] = option(None, "tokenise as Moses does, without XML escapes", metavar="LANG")
    lowercase: bool = option(False, "lower-case the words")
    min_count: int = option(1, "rarer words become <unk> (default: %(default)s)", type=int, metavar="N")
    max_words: Optional[int] = option(
        None, "at most so many words, the most frequent ones", type=int, metavar="N"
    )
    bpe_tokens: Optional[int] = option(
        None, "split words into subwords with so many merges (default: do not)", type=int, metavar="N"
    )


class _Chunk(NamedTuple):
    """Prepared lines, and how many lines and words they are."""

    text: bytes
    lines: int
    words: int


def prepare_lines(lines: List[bytes], tokenize: Optional[str], lower: bool) -> _Chunk:
    """Prepares a chunk of raw lines; words end up separated by single blanks.

    Args:
        lines: UTF-8, ended by line feeds.
        tokenize: language to tokenise, if any.
        lower: lower-case.
    """
    text = b"".join(lines).decode("utf-8")
    if tokenize is not None:
        prepared = prepare_text(text, tokenize, Steps(), escape=False)
    else:
        prepared = (text[:-1] if text.endswith("\n") else text).split("\n")
    words = [line.split() for line in prepared]
    result = "".join([" ".join(line) + "\n" for line in words])
    if lower:
        result = lowercase(result)
    return _Chunk(result.encode("utf-8"), len(words), sum(map(len, words)))


class LMPipeline(StagedRun):
    """One run.

    Args:
        recipe: what to make.
        options: how.
    """

    def __init__(self, recipe: Recipe, options: Options):
        for name in ("min_count", "max_words", "bpe_tokens"):
            value = getattr(options, name)
            if value is not None and value < 1:
                raise DataPrepError(f"{name}={value} makes no sense; give 1 or more")
        self.stages = ("tok", "bin") if options.bpe_tokens is None else ("tok", "bpe", "bin")
        named = ("tokenize", "lowercase", "min_count", "max_words", "bpe_tokens")
        described = {"recipe": recipe.name, **{name: getattr(options, name) for name in named}}
        source = options.source
        if source is not None and recipe.archives and not (source / recipe.archives[0].name).exists():
            recipe = bare_files(recipe, source)
        super().__init__(recipe, options, described)

    def _keys(self) -> Dict[str, str]:
        options = self.options
        tok = make_key(FORMAT, self.recipe.name, options.tokenize, options.lowercase, self._sums)
        subwords = make_key(tok, "bpe", options.bpe_tokens)
        words = make_key(subwords, "bin", options.min_count, options.max_words)
        return {"tok": tok, "bpe": subwords, "bin": words}

    def _stage_tok(self, key: str, pool: WorkerPool) -> None:
        """Unpacks and checks the text, then prepares all splits and counts their tokens."""
        if self.options.tokenize is not None:
            get_tokenizer(self.options.tokenize, escape=False)  # loaded once here, before the workers split off
        work = functools.partial(prepare_lines, tokenize=self.options.tokenize, lower=self.options.lowercase)
        paths = self._paths("tok")
        lines = {split: 0 for split in SPLITS}
        tokens = {split: 0 for split in SPLITS}
        with self._raw_text():
            self._begin()
            with writing(paths) as streams:
                for split, stream in zip(SPLITS, streams):
                    with progress_bar("preparing " + split, " lines") as bar:
                        for text in self.recipe.splits[split].texts:
                            for chunk in pool.map(work, read_chunks(text.lines(self.raw, "txt"))):
                                stream.write(chunk.text)
                                lines[split] += chunk.lines
                                tokens[split] += chunk.words + chunk.lines
                                bar.update(chunk.lines)
        self._compare(tokens, "tokens; the published archive gives")
        self.manifest.record("tok", key, paths, lines=lines, tokens=tokens)

    def _stage_bpe(self, key: str, pool: WorkerPool) -> None:
        """Learns subwords on train and applies them to all splits."""
        counts = pool.count(bpe.count_words, self.out / "tok" / "train.txt")
        if UNKNOWN in counts:
            raise DataPrepError(f"train has the word {UNKNOWN}, which has no subwords; leave out --bpe-tokens")
        logger.info("learning from %d different words", len(counts))
        codes, paths = self.out / "bpe" / "codes", self._paths("bpe")
        self._begin()
        with writing([codes]) as (stream,):
            stream.write(bpe.learn_codes(counts, self.options.bpe_tokens).encode("utf-8"))
        apply = functools.partial(bpe.apply_codes, path=str(codes), digest=file_sha256(codes))
        tokens = {split: 0 for split in SPLITS}
        with writing(paths) as targets:
            for split, source, target in zip(SPLITS, self._paths("tok"), targets):
                with open(str(source), "rb") as stream:
                    for result in pool.map(apply, read_chunks(stream)):
                        target.write(result)
                        tokens[split] += len(result.split()) + result.count(b"\n")
        self.manifest.record("bpe", key, [codes, *paths], tokens=tokens)

    def _stage_bin(self, key: str, pool: WorkerPool) -> None:
        """Writes fairseq's data of the one side there is."""
        self._begin()
        texts = "tok" if self.options.bpe_tokens is None else "bpe"
        known, facts = self._binarize(texts, pool, self.options.min_count, self.options.max_words or -1)
        if self.recipe.words not in (None, known + 1):
            logger.warning("the dictionary has %d words; the published one has %d", known + 1, self.recipe.words)
        unknown = {name.split(".")[0]: counts.unknown for name, counts in facts.items()}
        self.manifest.record("bin", key, (self.out / "bin").iterdir(), words=known, unknown=unknown)
