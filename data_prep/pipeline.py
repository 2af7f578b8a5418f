"""Runs a recipe: fetch, unpack, check, tokenise and clean, learn and apply subwords, binarise.

Results: ``OUT/tok/{train,valid,test}.LANG``, ``OUT/ref/`` (valid and test as published), ``OUT/bpe/`` (after BPE, and
``codes``), ``OUT/bin/`` (for fairseq, with a joined dictionary) and ``OUT/manifest.json``. Archives that had to be
fetched are in ``OUT/archives/``. A second run goes on after the last finished stage; with other options it is an error,
unless ``--overwrite`` allows the stages concerned to be done again. Input that cannot be used is found before anything
is written.
"""

import dataclasses
import functools
import logging
import re
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from data_prep import bpe, spm
from data_prep.download import file_sha256
from data_prep.errors import DataPrepError
from data_prep.manifest import make_key, writing
from data_prep.moses import get_tokenizer
from data_prep.pairs import PairChunk, pair_chunks, segment_pairs, tokenize_pairs, write_pairs
from data_prep.parallel import WorkerPool, progress_bar, read_chunks
from data_prep.readers import Text
from data_prep.recipes import SPLITS, Recipe, Split
from data_prep.stages import RunOptions, StagedRun, option

logger = logging.getLogger("data_prep")

STAGES = ("tok", "codes", "bpe", "bin")
SUBWORDS = ("subword-nmt", "sentencepiece")
#: Raised when a change of this program changes its results, so that earlier ones are not taken for new ones.
FORMAT = 2


@dataclasses.dataclass(frozen=True)
class Options(RunOptions):
    """How a recipe is run."""

    until: str = option("bin", "last stage to do (default: %(default)s)", choices=STAGES)
    subwords: str = option(
        "subword-nmt",
        "subword-nmt on Moses tokens, or sentencepiece on plain text (default: %(default)s)",
        flag="--bpe",
        choices=SUBWORDS,
    )
    bpe_tokens: Optional[int] = option(
        None, "merges, or pieces of sentencepiece (default: the recipe's)", type=int, metavar="N"
    )
    vocabulary_threshold: int = option(
        0,
        "split pieces further that a language has less often in training, as subword-nmt (default: do not)",
        type=int,
        metavar="N",
    )
    glossaries: Tuple[str, ...] = option(
        (), "words that are not split, as subword-nmt has them", nargs="+", metavar="REGEX"
    )
    bpe_dropout: float = option(0.0, "leave out merges in train (default: %(default)s)", type=float, metavar="P")
    lenient: bool = option(False, "accept empty lines, carriage returns and byte order marks, as the Perl recipe does")


def _check(options: Options, tokens: int) -> None:
    """Refuses settings that make no sense."""
    if options.subwords not in SUBWORDS:
        raise DataPrepError(f"bpe={options.subwords!r} is not known; choose from {', '.join(SUBWORDS)}")
    if tokens < 1:
        raise DataPrepError(f"bpe_tokens={tokens} makes no sense; give 1 or more")
    if options.vocabulary_threshold < 0:
        raise DataPrepError(f"vocabulary_threshold={options.vocabulary_threshold} makes no sense; give 0 or more")
    if not 0 <= options.bpe_dropout < 1:
        raise DataPrepError(f"bpe_dropout={options.bpe_dropout} makes no sense; give 0 or more, and less than 1")
    for glossary in options.glossaries:
        try:
            re.compile(glossary)
        except re.error as error:
            raise DataPrepError(f"the glossary {glossary!r} is no regular expression: {error}") from None
    further = options.vocabulary_threshold or options.glossaries or options.bpe_dropout
    if further and options.subwords == "sentencepiece":
        raise DataPrepError("vocabulary threshold, glossaries and dropout are subword-nmt's; sentencepiece has none")


class Pipeline(StagedRun):
    """One run of a recipe.

    Args:
        recipe: what to make.
        options: how.
    """

    stages = STAGES

    def __init__(self, recipe: Recipe, options: Options):
        self.tokens = recipe.bpe_tokens if options.bpe_tokens is None else options.bpe_tokens
        _check(options, self.tokens)
        self.plain = options.subwords == "sentencepiece"
        splits = {name: self._adapt(split, options) for name, split in recipe.splits.items()}
        self.langs = recipe.langs
        described = {
            "recipe": recipe.name,
            "source_lang": self.langs[0],
            "target_lang": self.langs[1],
            "splits": {name: _describe(split) for name, split in splits.items()},
            "hold_out": recipe.hold_out,
            "clean_bpe": recipe.clean_bpe and list(recipe.clean_bpe),
            "bpe": options.subwords,
            "bpe_tokens": self.tokens,
            "vocabulary_threshold": options.vocabulary_threshold,
            "glossaries": list(options.glossaries),
            "bpe_dropout": options.bpe_dropout,
            "plain": self.plain,
            "lowercased": any(split.steps.lower_first or split.steps.lower_last for split in splits.values()),
        }
        super().__init__(dataclasses.replace(recipe, splits=splits), options, described)

    def _adapt(self, split: Split, options: Options) -> Split:
        """What the options change in a split."""
        texts = split.texts
        if options.lenient:
            texts = tuple(dataclasses.replace(text, strict=False, lenient=True) for text in texts)
        steps = dataclasses.replace(split.steps, tokenize=False, aggressive=False) if self.plain else split.steps
        return Split(texts, steps)

    def _keys(self) -> Dict[str, str]:
        options, described = self.options, self._described
        tok = make_key(FORMAT, self.recipe.name, self.langs, described["splits"], self.recipe.hold_out, self._sums)
        codes = make_key(tok, options.subwords, self.tokens, options.vocabulary_threshold > 0)
        further = [described[name] for name in ("vocabulary_threshold", "glossaries", "bpe_dropout", "clean_bpe")]
        applied = make_key(codes, "bpe", further)
        return {"tok": tok, "codes": codes, "bpe": applied, "bin": make_key(applied, "bin")}

    def _stage_tok(self, key: str, pool: WorkerPool) -> None:
        """Unpacks and checks the raw text, then tokenises and cleans all splits."""
        paths = self._paths("tok")
        with self._raw_text() as raw:
            self._begin()
            with writing(paths) as streams:
                files = {name: streams[2 * index : 2 * index + 2] for index, name in enumerate(SPLITS)}
                counts = self._write_splits(raw, files, pool)
            published = self._write_published()
        self._compare(counts, "pairs; the published archives give")
        self.manifest.record("tok", key, [*paths, *published], raw_pairs=raw, pairs=counts)

    def _write_splits(self, raw: Dict[str, int], files: Dict[str, List[BinaryIO]], pool: WorkerPool) -> Dict[str, int]:
        """Tokenises each split into its files; returns how many pairs were written."""
        counts: Dict[str, int] = {}
        for name, split in self.recipe.splits.items():
            hold_out = self.recipe.hold_out if name == "train" else None
            chunks = self._tokenized(name, split, raw[name], pool)
            counts[name], held = write_pairs(chunks, files[name], files["valid"], hold_out)
            if hold_out is not None:
                counts["valid"] = held
            if not counts[name]:
                raise DataPrepError(f"no pair of {name} is left after cleaning")
        return counts

    def _tokenized(self, name: str, split: Split, raw: int, pool: WorkerPool) -> Iterator[PairChunk]:
        """Reads, tokenises and cleans a split of so many raw pairs."""
        for lang in self.langs if split.steps.tokenize else ():  # loaded once here, before the workers split off
            get_tokenizer(lang, split.steps.aggressive)
        work = functools.partial(tokenize_pairs, steps=split.steps, langs=self.langs)
        with progress_bar("tokenising " + name, " pairs", raw) as bar:
            for chunk in pool.map(work, pair_chunks(split.texts, self.raw, self.langs)):
                yield chunk
                bar.update(chunk.read)

    def _write_published(self) -> List[Path]:
        """Writes valid and test as published, for scores that are defined on such text; returns the files."""
        wanted = [(name, lang) for name in self.recipe.splits if name != "train" for lang in self.langs]
        paths = [self.out / "ref" / f"{name}.{lang}" for name, lang in wanted]
        with writing(paths) as streams:
            for (name, lang), stream in zip(wanted, streams):
                for part in self.recipe.splits[name].texts:
                    stream.writelines(part.published(self.raw, lang))
        return paths

    def _stage_codes(self, key: str, pool: WorkerPool) -> None:
        """Learns the subwords on the training text of both languages."""
        count_words = spm.count_words if self.plain else bpe.count_words
        counts = {lang: pool.count(count_words, self.out / "tok" / ("train." + lang)) for lang in self.langs}
        joint = counts[self.langs[0]] + counts[self.langs[1]]
        logger.info("learning from %d different words", len(joint))
        if self.plain:
            files = {"codes": spm.train_model(joint, self.tokens)}
        else:
            codes = bpe.learn_codes(joint, self.tokens)
            files = {"codes": codes.encode("utf-8")}
            for lang, own in counts.items() if self.options.vocabulary_threshold else ():
                files["vocab." + lang] = bpe.count_pieces(own, codes).encode("utf-8")
        self._begin()
        paths = [self.out / "bpe" / name for name in files]
        with writing(paths) as streams:
            for target, data in zip(streams, files.values()):
                target.write(data)
        self.manifest.record("codes", key, paths, words=len(joint))

    def _segmenter(self, split: str, lang: str) -> Callable[[Sequence[bytes]], bytes]:
        """What applies the subwords to a chunk of a language."""
        codes = self.out / "bpe" / "codes"
        digest = file_sha256(codes)
        if self.plain:
            return functools.partial(spm.apply_model, path=str(codes), digest=digest)
        options = self.options
        vocabulary = str(codes.with_name("vocab." + lang)) if options.vocabulary_threshold else ""
        settings = bpe.Settings(
            vocabulary, options.vocabulary_threshold, options.glossaries, options.bpe_dropout * (split == "train")
        )
        return functools.partial(bpe.apply_codes, path=str(codes), digest=digest, settings=settings)

    def _stage_bpe(self, key: str, pool: WorkerPool) -> None:
        """Applies the subwords to all splits."""
        paths = self._paths("bpe")
        tokens = {path.name: 0 for path in paths}
        pairs = {split: 0 for split in SPLITS}
        with writing(paths) as streams:
            targets = dict(zip(tokens, streams))
            for split in SPLITS:
                for name, chunk in self._segmented(split, pool):
                    targets[name].write(chunk)
                    tokens[name] += len(chunk.split())
                    pairs[split] += chunk.count(b"\n") if name == f"{split}.{self.langs[0]}" else 0
                if not pairs[split]:
                    raise DataPrepError(f"no pair of {split} is left after cleaning")
        self.manifest.record("bpe", key, paths, tokens=tokens, pairs=pairs)

    def _segmented(self, split: str, pool: WorkerPool) -> Iterator[Tuple[str, bytes]]:
        """Yields the chunks of a split and the files they belong to."""
        segment = [self._segmenter(split, lang) for lang in self.langs]
        names = [f"{split}.{lang}" for lang in self.langs]
        if self.recipe.clean_bpe is not None and split != "test":
            work = functools.partial(segment_pairs, segment=segment, limits=self.recipe.clean_bpe)
            tokens = Text(split + ".{lang}", strict=False)
            for pairs in pool.map(work, pair_chunks([tokens], self.out / "tok", self.langs)):
                yield from zip(names, pairs.sides)
            return
        for name, apply in zip(names, segment):
            with open(str(self.out / "tok" / name), "rb") as stream:
                for chunk in pool.map(apply, read_chunks(stream)):
                    yield name, chunk

    def _stage_bin(self, key: str, pool: WorkerPool) -> None:
        """Writes fairseq's data, with a joined dictionary."""
        _, facts = self._binarize("bpe", pool)
        texts = {name: counts._asdict() for name, counts in facts.items()}
        self.manifest.record("bin", key, (self.out / "bin").iterdir(), texts=texts)


def _describe(split: Split) -> Dict[str, Any]:
    """A split as plain data; of the user's own files, their names without the folder, so that it may be moved."""
    plain = dataclasses.asdict(split)
    for part in plain["texts"]:
        part["roles"] = [[lang, Path(role).name] for lang, role in part["roles"]]
    return plain
