#!/usr/bin/env python3
"""Runs a recipe: fetch, unpack, check, tokenise and clean, learn and apply subwords, binarise.

Results: ``OUT/tok/{train,valid,test}.LANG``, ``OUT/bpe/`` (the same after BPE, and ``codes``), ``OUT/bin/``
(``fairseq-preprocess`` with a joined dictionary) and ``OUT/manifest.json``. Archives that had to be fetched are in
``OUT/archives/``. A second run goes on after the last finished stage; with other options it is an error, unless
``--overwrite`` allows the stages concerned to be done again. Input that cannot be used is found before anything is
written.
"""

import argparse
import dataclasses
import functools
import logging
import shutil
import sys
from pathlib import Path
from typing import BinaryIO, Dict, List, Optional, Tuple

if __package__ in (None, ""):  # run as a script: the first entry is this folder, whose modules are not top-level ones
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from data_prep import bpe, spm
from data_prep.download import file_sha256
from data_prep.errors import DataPrepError, run_main
from data_prep.extract import extract
from data_prep.manifest import make_key, writing, writing_folder
from data_prep.pairs import PairWriter, tokenize_split
from data_prep.parallel import WorkerPool, read_chunks
from data_prep.recipes import Recipe, Split, iwslt14, multi30k, wmt14
from data_prep.stages import SPLITS, StagedRun, run_preprocess

logger = logging.getLogger("data_prep")

STAGES = ("tok", "codes", "bpe", "bin")
#: Raised when a change of this program changes its results, so that earlier ones are not taken for new ones.
FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Options:
    """How a recipe is run.

    Attributes:
        out: output folder.
        source: folder with archives already downloaded; ``None`` fetches them.
        workers: processes; ``None`` means all cores.
        subwords: ``subword-nmt`` or ``sentencepiece``.
        bpe_tokens: merges (or pieces); ``None`` means the recipe's number.
        mirrors: addresses to try first.
        until: last stage, of ``STAGES``.
        overwrite: do stages again whose options have changed.
        lenient: accept empty lines, carriage returns and byte order marks everywhere, as the Perl recipe does.
    """

    out: Path
    source: Optional[Path] = None
    workers: Optional[int] = None
    subwords: str = "subword-nmt"
    bpe_tokens: Optional[int] = None
    mirrors: Tuple[str, ...] = ()
    until: str = "bin"
    overwrite: bool = False
    lenient: bool = False


class Pipeline(StagedRun):
    """One run of a recipe.

    Args:
        recipe: what to make.
        options: how.
    """

    stages = STAGES
    results = ("tok", "bpe", "bin")

    def __init__(self, recipe: Recipe, options: Options):
        if options.subwords not in ("subword-nmt", "sentencepiece"):
            raise DataPrepError(f"bpe={options.subwords!r} is not known; choose from subword-nmt, sentencepiece")
        if options.until not in STAGES:
            raise DataPrepError(f"until={options.until!r} is not known; choose from {', '.join(STAGES)}")
        self.tokens = recipe.bpe_tokens if options.bpe_tokens is None else options.bpe_tokens
        if self.tokens < 1:
            raise DataPrepError(f"bpe_tokens={self.tokens} makes no sense; give 1 or more")
        if options.lenient:
            splits = {
                name: Split(
                    tuple(dataclasses.replace(text, strict=False, lenient=True) for text in split.texts), split.steps
                )
                for name, split in recipe.splits.items()
            }
            recipe = dataclasses.replace(recipe, splits=splits)
        self.recipe = recipe
        self.langs = (recipe.source, recipe.target)
        described = {
            "recipe": recipe.name,
            "source_lang": recipe.source,
            "target_lang": recipe.target,
            "splits": {name: dataclasses.asdict(split) for name, split in recipe.splits.items()},
            "hold_out": recipe.hold_out,
            "bpe": options.subwords,
            "bpe_tokens": self.tokens,
        }
        super().__init__(options, recipe.archives, described)
        self.raw = self.out / "raw" if recipe.unpack else self.archives

    def plan(self) -> List[str]:
        """Returns what a run would do, a line for each archive and stage."""
        lines = [f"write {self.out / ('bpe/codes' if stage == 'codes' else stage)}" for stage in STAGES]
        return self.plan_archives() + lines[: STAGES.index(self.options.until) + 1]

    def _keys(self) -> Dict[str, str]:
        """Returns for each stage what its result depends on, condensed."""
        splits = self._described["splits"]
        tok = make_key(FORMAT, self.recipe.name, self.langs, splits, self.recipe.hold_out, self._sums)
        codes = make_key(tok, self.options.subwords, self.tokens)
        return {"tok": tok, "codes": codes, "bpe": make_key(codes, "bpe"), "bin": make_key(codes, "bin")}

    def _stage_tok(self, key: str, pool: WorkerPool) -> None:
        """Unpacks and checks the raw text, then tokenises and cleans all splits."""
        if self.recipe.unpack:
            self._unpack()
        try:
            raw = {
                name: sum(text.check(self.raw, *self.langs) for text in split.texts)
                for name, split in self.recipe.splits.items()
            }
        except DataPrepError:
            if self.recipe.unpack:
                shutil.rmtree(str(self.raw), ignore_errors=True)
            raise
        self._begin()
        paths = self._paths("tok")
        with writing(paths) as streams:
            files = {name: streams[2 * index : 2 * index + 2] for index, name in enumerate(SPLITS)}
            counts = self._write_splits(raw, files, pool)
        self._compare_counts(counts)
        self.manifest.record("tok", key, paths, raw_pairs=raw, pairs=counts)
        if self.recipe.unpack:
            shutil.rmtree(str(self.raw), ignore_errors=True)

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
        counts: Dict[str, int] = {}
        for lang in self.langs:
            with open(str(self.out / "tok" / ("train." + lang)), "rb") as stream:
                for part in pool.map(bpe.count_words, read_chunks(stream)):
                    for word, count in part.items():
                        counts[word] = counts.get(word, 0) + count
        logger.info("learning from %d different words", len(counts))
        if self.options.subwords == "sentencepiece":
            codes = spm.train_model(counts, self.tokens)
        else:
            codes = bpe.learn_codes(counts, self.tokens).encode("utf-8")
        self._begin()
        path = self.out / "bpe" / "codes"
        with writing([path]) as (stream,):
            stream.write(codes)
        self.manifest.record("codes", key, [path], words=len(counts))

    def _stage_bpe(self, key: str, pool: WorkerPool) -> None:
        """Applies the subwords to all splits."""
        codes = self.out / "bpe" / "codes"
        apply = functools.partial(
            spm.apply_model if self.options.subwords == "sentencepiece" else bpe.apply_codes,
            path=str(codes),
            digest=file_sha256(codes),
        )
        paths = self._paths("bpe")
        tokens: Dict[str, int] = {}
        with writing(paths) as streams:
            for source, target in zip(self._paths("tok"), streams):
                count = 0
                with open(str(source), "rb") as stream:
                    for result in pool.map(apply, read_chunks(stream)):
                        target.write(result)
                        count += len(result.split())
                tokens[source.name] = count
        self.manifest.record("bpe", key, paths, tokens=tokens)

    def _stage_bin(self, key: str, pool: WorkerPool) -> None:
        """Runs fairseq-preprocess with a joined dictionary."""
        target = self.out / "bin"
        with writing_folder(target) as folder:
            flags = ["--source-lang", self.recipe.source, "--target-lang", self.recipe.target, "--joined-dictionary"]
            run_preprocess(folder, {name: self.out / "bpe" / name for name in SPLITS}, pool.workers, flags)
        self.manifest.record("bin", key, [path for path in target.iterdir() if path.is_file()])


_RECIPES = {"iwslt14": iwslt14, "wmt14": wmt14, "multi30k": multi30k}


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(description="Prepare a corpus, from download to binarised data.")
    commands = parser.add_subparsers(dest="recipe", metavar="RECIPE", required=True)
    for name, recipe in _RECIPES.items():
        summary = (recipe.__doc__ or "").splitlines()[0]
        command = commands.add_parser(name, help=summary, description=summary)
        _add_options(command, recipe().bpe_tokens)
        if name == "wmt14":
            command.add_argument(
                "--news-commentary",
                choices=("v12", "v9"),
                default="v12",
                help="v12 as in the PowerNorm release, v9 for the classic WMT14 set (default: %(default)s)",
            )
            command.add_argument(
                "--valid-from-train",
                action="store_true",
                help="every 100th line of the cleaned training text is valid, in place of newstest2013",
            )
        if name == "multi30k":
            command.add_argument(
                "--test-set", choices=("2016", "2017"), default="2016", help="Flickr test set (default: %(default)s)"
            )
    return parser


def _add_options(parser: argparse.ArgumentParser, bpe_tokens: int) -> None:
    """Adds the options that all recipes have."""
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the results go")
    parser.add_argument(
        "--from", dest="source", type=Path, metavar="DIR", help="archives already downloaded (default: fetch them)"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: all cores)")
    parser.add_argument(
        "--bpe",
        choices=("subword-nmt", "sentencepiece"),
        default="subword-nmt",
        help="kind of subwords (default: %(default)s)",
    )
    parser.add_argument(
        "--bpe-tokens",
        type=int,
        default=bpe_tokens,
        metavar="N",
        help="merges, or pieces of sentencepiece (default: %(default)s)",
    )
    parser.add_argument(
        "--mirror", action="append", default=[], metavar="URL", help="folder on a server to try first; may be repeated"
    )
    parser.add_argument("--until", choices=STAGES, default="bin", help="last stage to do (default: %(default)s)")
    parser.add_argument("--overwrite", action="store_true", help="redo stages whose options have changed")
    parser.add_argument(
        "--lenient",
        action="store_true",
        help="accept empty lines, carriage returns and byte order marks, as the Perl recipe does",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be done")


def main(argv: Optional[List[str]] = None) -> int:
    """Runs the command line; returns the exit status."""
    args = build_parser().parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s | %(message)s", datefmt="%H:%M:%S")
    if args.recipe == "wmt14":
        recipe = wmt14(args.news_commentary, args.valid_from_train)
    elif args.recipe == "multi30k":
        recipe = multi30k(args.test_set)
    else:
        recipe = iwslt14()
    options = Options(
        out=args.out,
        source=args.source,
        workers=args.workers,
        subwords=args.bpe,
        bpe_tokens=args.bpe_tokens,
        mirrors=tuple(args.mirror),
        until=args.until,
        overwrite=args.overwrite,
        lenient=args.lenient,
    )
    pipeline = Pipeline(recipe, options)
    if args.dry_run:
        print("\n".join(pipeline.plan()))
        return 0
    pipeline.run()
    print(args.out)
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
