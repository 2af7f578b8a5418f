"""Prepares text for language modelling: fetch, unpack, check, split into words, learn and apply subwords, binarise.

Results: ``OUT/tok/{train,valid,test}.txt``, with subwords also ``OUT/bpe/`` (and ``codes``), ``OUT/bin/`` (as
``fairseq-preprocess --only-source`` writes it) and ``OUT/manifest.json``. Stages, second runs and errors are those of
``data_prep.pipeline``.
"""

import argparse
import functools
import logging
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Tuple

from data_prep import binarize, bpe
from data_prep.download import file_sha256
from data_prep.errors import DataPrepError
from data_prep.extract import extract, extract_zip
from data_prep.lm_recipes import LM_RECIPES, LMRecipe
from data_prep.manifest import make_key, writing, writing_folder
from data_prep.moses import get_tokenizer
from data_prep.normalize import lowercase
from data_prep.parallel import WorkerPool, read_chunks
from data_prep.progress import progress_bar
from data_prep.readers import Text
from data_prep.stages import SPLITS, RunOptions, StagedRun, add_common_options
from data_prep.tokenizer import prepare_text

logger = logging.getLogger("data_prep")

UNKNOWN = "<unk>"
#: Raised when a change of this program changes its results, so that earlier ones are not taken for new ones.
FORMAT = 2


@dataclass(frozen=True)
class Options(RunOptions):
    """How a corpus is prepared.

    Attributes:
        texts: split -> text files, for the recipe ``text``.
        tokenize: language to tokenise, as Moses does but without XML escapes; ``None`` takes words as they are.
        lowercase: lower-case the words.
        min_count: words that training has less often become ``<unk>``.
        max_words: at most so many words, the most frequent ones; ``None`` sets no limit.
        bpe_tokens: merges of subword-nmt, learned on train; ``None`` leaves words whole.
    """

    texts: Optional[Dict[str, Tuple[Path, ...]]] = None
    tokenize: Optional[str] = None
    lowercase: bool = False
    min_count: int = 1
    max_words: Optional[int] = None
    bpe_tokens: Optional[int] = None


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
        prepared = prepare_text(text, tokenize, escape=False)
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
        options: how.
        recipe: a published corpus; ``None`` takes the texts of the options.
    """

    def __init__(self, options: Options, recipe: Optional[LMRecipe] = None):
        for name, value in (("min_count", options.min_count), ("max_words", options.max_words)):
            if value is not None and value < 1:
                raise DataPrepError(f"{name}={value} makes no sense; give 1 or more")
        if options.bpe_tokens is not None and options.bpe_tokens < 1:
            raise DataPrepError(f"bpe_tokens={options.bpe_tokens} makes no sense; give 1 or more")
        self.stages = ("tok", "bin") if options.bpe_tokens is None else ("tok", "bpe", "bin")
        self.results = self.stages
        if options.until not in self.stages:
            raise DataPrepError(f"until={options.until!r} is not known; choose from {', '.join(self.stages)}")
        self.recipe = recipe
        described = {
            "recipe": "text" if recipe is None else recipe.name,
            "tokenize": options.tokenize,
            "lowercase": options.lowercase,
            "min_count": options.min_count,
            "max_words": options.max_words,
            "bpe_tokens": options.bpe_tokens,
        }
        self.texts: Dict[str, Tuple[Path, ...]] = dict(options.texts or {})
        if recipe is not None and options.source is not None and not (options.source / recipe.archive.name).exists():
            self.texts = recipe.bare_files(options.source)
        super().__init__(options, () if recipe is None or self.texts else (recipe.archive,), described)

    def plan(self) -> List[str]:
        """Returns what a run would do, a line for each input and stage."""
        given = [path for split in SPLITS for path in self.texts.get(split, ())]
        last = self.stages.index(self.options.until)
        lines = self.plan_archives() + [f"read {path}" for path in given]
        return lines + [f"write {self.out / stage}" for stage in self.stages[: last + 1]]

    def _checksums(self) -> Dict[str, str]:
        """Makes sure that the input is there; returns the SHA-256 of each file of it."""
        sums = super()._checksums()
        for split, paths in self.texts.items():
            for number, path in enumerate(paths):
                self._add_checksum(sums, f"{split}/{number}/{path.name}", path)
        return sums

    def _keys(self) -> Dict[str, str]:
        options = self.options
        tok = make_key(FORMAT, self._described["recipe"], options.tokenize, options.lowercase, self._sums)
        subwords = make_key(tok, "bpe", options.bpe_tokens)
        words = make_key(subwords, "bin", options.min_count, options.max_words)
        return {"tok": tok, "bpe": subwords, "bin": words}

    def _stage_tok(self, key: str, pool: WorkerPool) -> None:
        """Unpacks and checks the text, then prepares all splits."""
        raw = self.out / "raw"
        texts = self.texts
        if self.recipe is not None and not texts:
            self._unpack(raw)
            texts = {split: (raw / name,) for split, name in self.recipe.files.items()}
        try:
            for paths in texts.values():
                for path in paths:
                    Text(path.name, strict=False).check_side(path)
            self._begin()
            self._write_splits(key, texts, pool)
        finally:
            shutil.rmtree(str(raw), ignore_errors=True)

    def _unpack(self, raw: Path) -> None:
        """Unpacks the three files of the recipe."""
        archive = self.archives / self.recipe.archive.name
        wanted = set(self.recipe.files.values())
        logger.info("unpacking %s", archive)
        with writing_folder(raw) as folder:
            unpack = extract_zip if archive.suffix == ".zip" else extract
            wanted -= {file.relative_to(folder).as_posix() for file in unpack(archive, folder, wanted)}
            if wanted:
                raise DataPrepError(f"{', '.join(sorted(wanted))} is not in {archive}")

    def _write_splits(self, key: str, texts: Dict[str, Tuple[Path, ...]], pool: WorkerPool) -> None:
        """Prepares each split and counts its tokens."""
        if self.options.tokenize is not None:
            get_tokenizer(self.options.tokenize, escape=False)  # loaded once here, before the workers split off
        work = functools.partial(prepare_lines, tokenize=self.options.tokenize, lower=self.options.lowercase)
        paths = self._paths("tok")
        lines: Dict[str, int] = {}
        tokens: Dict[str, int] = {}
        with writing(paths.values()) as streams:
            for split, stream in zip(SPLITS, streams):
                lines[split] = tokens[split] = 0
                with progress_bar("preparing " + split, " lines") as bar:
                    for path in texts[split]:
                        raw = Text(path.name, strict=False).lines(path.parent, "")
                        for chunk in pool.map(work, read_chunks(raw)):
                            stream.write(chunk.text)
                            lines[split] += chunk.lines
                            tokens[split] += chunk.words + chunk.lines
                            bar.update(chunk.lines)
        for split, expected in ({} if self.recipe is None else self.recipe.expected).items():
            if tokens[split] != expected:
                logger.warning("%s has %d tokens; the published archive gives %d", split, tokens[split], expected)
        self.manifest.record("tok", key, paths.values(), lines=lines, tokens=tokens)

    def _paths(self, folder: str) -> Dict[str, Path]:
        """Returns the files of the splits."""
        return {split: self.out / folder / (split + ".txt") for split in SPLITS}

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
        tokens: Dict[str, int] = {}
        with writing(paths.values()) as targets:
            for split, source, target in zip(SPLITS, self._paths("tok").values(), targets):
                tokens[split] = 0
                with open(str(source), "rb") as stream:
                    for result in pool.map(apply, read_chunks(stream)):
                        target.write(result)
                        tokens[split] += len(result.split()) + result.count(b"\n")
        self.manifest.record("bpe", key, [codes, *paths.values()], tokens=tokens)

    def _stage_bin(self, key: str, pool: WorkerPool) -> None:
        """Writes fairseq's data of the one side there is."""
        self._begin()
        texts = self._paths("tok" if self.options.bpe_tokens is None else "bpe")
        target = self.out / "bin"
        with writing_folder(target) as folder:
            counts = pool.count(binarize.count_tokens, texts["train"])
            words = binarize.make_dictionary(counts, self.options.min_count, self.options.max_words or -1)
            binarize.write_dictionary(folder / "dict.txt", words)
            found = {
                split: binarize.binarize(path, folder / "dict.txt", folder / split, pool)
                for split, path in texts.items()
            }
        known = sum(count > 0 for _, count in words)
        if self.recipe is not None and known + 1 != self.recipe.words:
            logger.warning("the dictionary has %d words; the published one has %d", known + 1, self.recipe.words)
        unknown = {split: counts.unknown for split, counts in found.items()}
        self.manifest.record("bin", key, sorted(target.iterdir()), words=known, unknown=unknown)


DESCRIPTION = "Prepare text for language modelling."


def add_corpora(parser: argparse.ArgumentParser) -> None:
    """Adds a subcommand for each corpus."""
    commands = parser.add_subparsers(dest="recipe", metavar="CORPUS", required=True)
    summaries = {name: (recipe.__doc__ or "").splitlines()[0] for name, recipe in LM_RECIPES.items()}
    summaries["text"] = "Any text, a sentence or a paragraph on each line."
    for name, summary in summaries.items():
        command = commands.add_parser(name, help=summary, description=summary)
        add_common_options(command, ("tok", "bpe", "bin"), archives=name != "text")
        command.set_defaults(make=_pipeline)
    for split in SPLITS:
        command.add_argument(
            "--" + split, type=Path, nargs="+", required=True, metavar="FILE", help=f"text for {split}, plain or .gz"
        )
    command.add_argument("--tokenize", metavar="LANG", help="tokenise as Moses does, without XML escapes")
    command.add_argument("--lowercase", action="store_true", help="lower-case the words")
    command.add_argument(
        "--min-count", type=int, default=1, metavar="N", help="rarer words become <unk> (default: %(default)s)"
    )
    command.add_argument("--max-words", type=int, metavar="N", help="at most so many words, the most frequent ones")
    command.add_argument(
        "--bpe-tokens", type=int, metavar="N", help="split words into subwords with so many merges (default: do not)"
    )


def _pipeline(args: argparse.Namespace) -> LMPipeline:
    """What prepares a text."""
    if args.recipe != "text":
        return LMPipeline(Options.of(args), LM_RECIPES[args.recipe]())
    own = {name: getattr(args, name) for name in ("tokenize", "lowercase", "min_count", "max_words", "bpe_tokens")}
    return LMPipeline(Options.of(args, texts={split: tuple(getattr(args, split)) for split in SPLITS}, **own))
