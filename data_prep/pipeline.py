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
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, List, Optional, Tuple

from data_prep import binarize, bpe, spm
from data_prep.download import file_sha256
from data_prep.errors import DataPrepError
from data_prep.extract import extract
from data_prep.manifest import make_key, writing, writing_folder
from data_prep.pairs import PairWriter, pair_chunks, segment_pairs, tokenize_split
from data_prep.parallel import WorkerPool, read_chunks
from data_prep.readers import Text
from data_prep.recipes import Recipe, Split, Steps
from data_prep.stages import SPLITS, RunOptions, StagedRun

logger = logging.getLogger("data_prep")

STAGES = ("tok", "codes", "bpe", "bin")
SUBWORDS = ("subword-nmt", "sentencepiece")
#: Raised when a change of this program changes its results, so that earlier ones are not taken for new ones.
FORMAT = 2


@dataclasses.dataclass(frozen=True)
class Options(RunOptions):
    """How a recipe is run.

    Attributes:
        subwords: ``subword-nmt`` on Moses tokens, or ``sentencepiece`` on plain text.
        bpe_tokens: merges (or pieces); ``None`` means the recipe's number.
        vocabulary_threshold: pieces that training has less often in a language are split further; 0 leaves them.
        glossaries: regular expressions of words that are not split.
        bpe_dropout: probability that a merge is left out in train.
        lenient: accept empty lines, carriage returns and byte order marks everywhere, as the Perl recipe does.
    """

    subwords: str = "subword-nmt"
    bpe_tokens: Optional[int] = None
    vocabulary_threshold: int = 0
    glossaries: Tuple[str, ...] = ()
    bpe_dropout: float = 0.0
    lenient: bool = False


def _check(options: Options, tokens: int) -> None:
    """Refuses settings that make no sense."""
    if options.subwords not in SUBWORDS:
        raise DataPrepError(f"bpe={options.subwords!r} is not known; choose from {', '.join(SUBWORDS)}")
    if options.until not in STAGES:
        raise DataPrepError(f"until={options.until!r} is not known; choose from {', '.join(STAGES)}")
    if tokens < 1:
        raise DataPrepError(f"bpe_tokens={tokens} makes no sense; give 1 or more")
    if options.vocabulary_threshold < 0:
        raise DataPrepError(f"vocabulary_threshold={options.vocabulary_threshold} makes no sense; give 0 or more")
    if not 0 <= options.bpe_dropout < 1:
        raise DataPrepError(f"bpe_dropout={options.bpe_dropout} makes no sense; give 0 or more, and less than 1")
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
    results = ("tok", "ref", "bpe", "bin")

    def __init__(self, recipe: Recipe, options: Options):
        self.tokens = recipe.bpe_tokens if options.bpe_tokens is None else options.bpe_tokens
        _check(options, self.tokens)
        self.plain = options.subwords == "sentencepiece"
        self.recipe = recipe = dataclasses.replace(
            recipe, splits={name: self._adapt(split, options) for name, split in recipe.splits.items()}
        )
        self.langs = (recipe.source, recipe.target)
        described = {
            "recipe": recipe.name,
            "source_lang": recipe.source,
            "target_lang": recipe.target,
            "splits": {name: _describe(split) for name, split in recipe.splits.items()},
            "hold_out": recipe.hold_out,
            "clean_bpe": recipe.clean_bpe and list(recipe.clean_bpe),
            "bpe": options.subwords,
            "bpe_tokens": self.tokens,
            "vocabulary_threshold": options.vocabulary_threshold,
            "glossaries": list(options.glossaries),
            "bpe_dropout": options.bpe_dropout,
            "plain": self.plain,
            "lowercased": any(step.lower_first or step.lower_last for step in self._steps()),
        }
        super().__init__(options, recipe.archives, described)
        self.raw = self.out / "raw" if recipe.unpack else self.archives

    def _adapt(self, split: Split, options: Options) -> Split:
        """What the options change in a split."""
        texts = split.texts
        if options.lenient:
            texts = tuple(dataclasses.replace(text, strict=False, lenient=True) for text in texts)
        steps = dataclasses.replace(split.steps, tokenize=False, aggressive=False) if self.plain else split.steps
        return Split(texts, steps)

    def _steps(self) -> List[Steps]:
        return [split.steps for split in self.recipe.splits.values()]

    def plan(self) -> List[str]:
        """Returns what a run would do, a line for each archive and stage."""
        lines = [f"write {self.out / ('bpe/codes' if stage == 'codes' else stage)}" for stage in STAGES]
        return self.plan_archives() + lines[: STAGES.index(self.options.until) + 1]

    def _checksums(self) -> Dict[str, str]:
        """The same for files of the user's own, which no archive has."""
        sums = super()._checksums()
        if not self.recipe.archives:
            for name, split in self.recipe.splits.items():
                for number, part in enumerate(split.texts):
                    for lang in self.langs:
                        path = part.file(self.raw, lang)
                        self._add_checksum(sums, f"{name}/{number}/{path.name}", path)
        return sums

    def _keys(self) -> Dict[str, str]:
        """Returns for each stage what its result depends on, condensed."""
        options, described = self.options, self._described
        tok = make_key(FORMAT, self.recipe.name, self.langs, described["splits"], self.recipe.hold_out, self._sums)
        codes = make_key(tok, options.subwords, self.tokens, options.vocabulary_threshold > 0)
        further = [described[name] for name in ("vocabulary_threshold", "glossaries", "bpe_dropout", "clean_bpe")]
        applied = make_key(codes, "bpe", further)
        return {"tok": tok, "codes": codes, "bpe": applied, "bin": make_key(applied, "bin")}

    def _stage_tok(self, key: str, pool: WorkerPool) -> None:
        """Unpacks and checks the raw text, then tokenises and cleans all splits."""
        if self.recipe.unpack:
            self._unpack()
        try:
            raw = {name: self._count_raw(split) for name, split in self.recipe.splits.items()}
        except DataPrepError:
            if self.recipe.unpack:
                shutil.rmtree(str(self.raw), ignore_errors=True)
            raise
        self._begin()
        paths = self._paths("tok")
        with writing(paths) as streams:
            files = {name: streams[2 * index : 2 * index + 2] for index, name in enumerate(SPLITS)}
            counts = self._write_splits(raw, files, pool)
        published = self._write_published()
        self._compare_counts(counts)
        self.manifest.record("tok", key, [*paths, *published], raw_pairs=raw, pairs=counts)
        if self.recipe.unpack:
            shutil.rmtree(str(self.raw), ignore_errors=True)

    def _count_raw(self, split: Split) -> int:
        """Checks the texts of a split; returns how many pairs they have."""
        total = 0
        for part in split.texts:
            pairs = part.check(self.raw, *self.langs)
            if part.pairs not in (None, pairs):
                name = part.name(self.recipe.source)
                logger.warning("%s has %d lines; the published one has %d", name, pairs, part.pairs)
            total += pairs
        return total

    def _unpack(self) -> None:
        """Unpacks the files that the recipe reads."""
        wanted = {
            text.name(lang) for split in self.recipe.splits.values() for text in split.texts for lang in self.langs
        }
        with writing_folder(self.raw) as folder:
            for archive in self.recipe.archives:
                path = self.archives / archive.name
                logger.info("unpacking %s", path)
                wanted -= {file.relative_to(folder).as_posix() for file in extract(path, folder, wanted)}
            if wanted:
                names = " nor ".join(str(self.archives / archive.name) for archive in self.recipe.archives)
                raise DataPrepError(f"{', '.join(sorted(wanted))} is not in {names}")

    def _write_splits(self, raw: Dict[str, int], files: Dict[str, List[BinaryIO]], pool: WorkerPool) -> Dict[str, int]:
        """Tokenises each split into its files; returns how many pairs were written."""
        counts: Dict[str, int] = {}
        for name, split in self.recipe.splits.items():
            hold_out = self.recipe.hold_out if name == "train" else None
            writer = PairWriter(files[name], files["valid"], hold_out)
            tokenize_split(name, split, self.raw, self.langs, raw[name], writer, pool)
            counts[name] = writer.written
            if hold_out is not None:
                counts["valid"] = writer.held
            if not writer.written:
                raise DataPrepError(f"no pair of {name} is left after cleaning")
        return counts

    def _write_published(self) -> List[Path]:
        """Writes valid and test as published, for scores that are defined on such text; returns the files."""
        wanted = [(name, lang) for name in self.recipe.splits if name != "train" for lang in self.langs]
        paths = [self.out / "ref" / f"{name}.{lang}" for name, lang in wanted]
        with writing(paths) as streams:
            for (name, lang), stream in zip(wanted, streams):
                for part in self.recipe.splits[name].texts:
                    stream.writelines(part.published(self.raw, lang))
        return paths

    def _compare_counts(self, counts: Dict[str, int]) -> None:
        """Warns if the splits do not have the sizes that the published archives give."""
        for name, expected in (self.recipe.expected or {}).items():
            if counts[name] != expected:
                logger.warning("%s has %d pairs; the published archives give %d", name, counts[name], expected)

    def _paths(self, folder: str) -> List[Path]:
        """Returns the files of the splits, both languages of each in turn."""
        return [self.out / folder / (f"{name}.{lang}") for name in SPLITS for lang in self.langs]

    def _stage_codes(self, key: str, pool: WorkerPool) -> None:
        """Learns the subwords on the training text of both languages."""
        count_words = spm.count_words if self.plain else bpe.count_words
        counts = {lang: pool.count(count_words, self.out / "tok" / ("train." + lang)) for lang in self.langs}
        joint = dict(counts[self.langs[0]])
        for word, count in counts[self.langs[1]].items():
            joint[word] = joint.get(word, 0) + count
        logger.info("learning from %d different words", len(joint))
        files = {"codes": spm.train_model(joint, self.tokens) if self.plain else b""}
        if not self.plain:
            codes = bpe.learn_codes(joint, self.tokens)
            files["codes"] = codes.encode("utf-8")
            if self.options.vocabulary_threshold:
                for lang, own in counts.items():
                    files["vocab." + lang] = bpe.count_pieces(own, codes).encode("utf-8")
        self._begin()
        paths = [self.out / "bpe" / name for name in files]
        with writing(paths) as streams:
            for target, data in zip(streams, files.values()):
                target.write(data)
        self.manifest.record("codes", key, paths, words=len(joint))

    def _segmenter(self, split: str, lang: str) -> Callable[[List[bytes]], bytes]:
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
        facts: Dict[str, Any] = {"tokens": {path.name: 0 for path in paths}, "pairs": {}}
        with writing(paths) as streams:
            targets = dict(zip((path.name for path in paths), streams))
            for split in SPLITS:
                names = [f"{split}.{lang}" for lang in self.langs]
                for name, chunk in self._segmented(split, pool):
                    targets[name].write(chunk)
                    facts["tokens"][name] += len(chunk.split())
                    facts["pairs"][split] = facts["pairs"].get(split, 0) + (name == names[0]) * chunk.count(b"\n")
                if not facts["pairs"].get(split):
                    raise DataPrepError(f"no pair of {split} is left after cleaning")
        self.manifest.record("bpe", key, paths, **facts)

    def _segmented(self, split: str, pool: WorkerPool) -> Any:
        """Yields the chunks of a split and the files they belong to."""
        segment = [self._segmenter(split, lang) for lang in self.langs]
        names = [f"{split}.{lang}" for lang in self.langs]
        if self.recipe.clean_bpe is not None and split != "test":
            work = functools.partial(segment_pairs, segment=segment, limits=self.recipe.clean_bpe)
            tokens = Text(split + ".{lang}", strict=False)
            for pairs in pool.map(work, pair_chunks([tokens], self.out / "tok", self.langs)):
                yield names[0], pairs.source
                yield names[1], pairs.target
            return
        for name, apply in zip(names, segment):
            with open(str(self.out / "tok" / name), "rb") as stream:
                for chunk in pool.map(apply, read_chunks(stream)):
                    yield name, chunk

    def _stage_bin(self, key: str, pool: WorkerPool) -> None:
        """Writes fairseq's data, with a joined dictionary."""
        target = self.out / "bin"
        facts: Dict[str, Dict[str, Any]] = {}
        with ExitStack() as stack:
            folder = stack.enter_context(writing_folder(target))
            counts = pool.count(binarize.count_tokens, *(self.out / "bpe" / f"train.{lang}" for lang in self.langs))
            words = binarize.make_dictionary(counts)
            for lang in self.langs:
                binarize.write_dictionary(folder / f"dict.{lang}.txt", words)
            for path in self._paths("bpe"):
                split, lang = path.name.split(".", 1)
                stem = folder / f"{split}.{'-'.join(self.langs)}.{lang}"
                facts[path.name] = binarize.binarize(path, folder / f"dict.{lang}.txt", stem, pool)._asdict()
        self.manifest.record("bin", key, sorted(target.iterdir()), texts=facts)


def _describe(split: Split) -> Dict[str, Any]:
    """A split as plain data; of the user's own files, their names without the folder, so that it may be moved."""
    plain = dataclasses.asdict(split)
    for part in plain["texts"]:
        part["roles"] = [[lang, Path(role).name] for lang, role in part["roles"]]
    return plain
