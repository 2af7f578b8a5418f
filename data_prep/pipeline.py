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
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterator, List, Optional, Tuple

if __package__ in (None, ""):  # run as a script: the first entry is this folder, whose modules are not top-level ones
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from data_prep import bpe, spm
from data_prep.download import download, file_sha256, verify
from data_prep.errors import DataPrepError, run_main
from data_prep.extract import extract
from data_prep.manifest import Manifest, make_key, package_versions, writing, writing_folder
from data_prep.pairs import PairWriter, tokenize_split
from data_prep.parallel import WorkerPool, read_chunks
from data_prep.recipes import Recipe, Split, iwslt14, multi30k, wmt14

logger = logging.getLogger("data_prep")

STAGES = ("tok", "codes", "bpe", "bin")
SPLITS = ("train", "valid", "test")
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


class Pipeline:
    """One run of a recipe.

    Args:
        recipe: what to make.
        options: how.

    Attributes:
        seconds: how long each stage took that was not done already.
    """

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
        self.options = options
        self.out = options.out
        self.seconds: Dict[str, float] = {}
        self.langs = (recipe.source, recipe.target)
        self.raw = self.out / "raw"
        self.archives = options.source if options.source is not None else self.out / "archives"
        if not recipe.unpack:
            self.raw = self.archives
        self.manifest = Manifest(self.out)
        self._sums: Dict[str, str] = {}
        self._outdated: List[Path] = []
        self._described: Dict[str, Any] = {
            "recipe": recipe.name,
            "source_lang": recipe.source,
            "target_lang": recipe.target,
            "splits": {name: dataclasses.asdict(split) for name, split in recipe.splits.items()},
            "hold_out": recipe.hold_out,
            "bpe": options.subwords,
            "bpe_tokens": self.tokens,
        }

    def run(self) -> None:
        """Does what is not yet done."""
        with self._locked():
            self.manifest = Manifest(self.out)
            if not self.manifest.started and not self.options.overwrite:
                present = [name for name in ("tok", "bpe", "bin") if (self.out / name).exists()]
                if present:
                    raise DataPrepError(
                        f"{self.out} has {', '.join(present)} but no manifest; give --overwrite or another --out"
                    )
            self._sums = self._checksums()
            keys = self._keys()
            self._refuse_changes(keys)
            wanted = STAGES[: STAGES.index(self.options.until) + 1]
            with WorkerPool(self.options.workers) as pool:
                for stage in wanted:
                    if self.manifest.finished(stage, keys[stage]):
                        logger.info("%s: done already", stage)
                        continue
                    start = time.perf_counter()
                    getattr(self, "_stage_" + stage)(keys[stage], pool)
                    self.seconds[stage] = time.perf_counter() - start
                    logger.info("%s: %.1f s", stage, self.seconds[stage])
            self.manifest.save(complete=True)

    def plan(self) -> List[str]:
        """Returns what a run would do, a line for each archive and stage."""
        lines = []
        for archive in self.recipe.archives:
            where = self.archives / archive.name
            lines.append(f"read {where}" if where.exists() or self.options.source else f"fetch {archive.urls[0]}")
        lines += [f"write {self.out / ('bpe/codes' if stage == 'codes' else stage)}" for stage in STAGES]
        return lines[: len(self.recipe.archives) + STAGES.index(self.options.until) + 1]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keeps a second run out of the folder; leaves no empty folder behind after an error."""
        created = not self.out.exists()
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataPrepError(f"{self.out} cannot be made: {error.strerror}") from None
        handle = os.open(str(self.out), os.O_RDONLY)
        try:
            try:
                import fcntl

                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except ImportError:
                pass
            except OSError:
                raise DataPrepError(f"another run is at work in {self.out}") from None
            yield
        finally:
            os.close(handle)
            if created and not any(self.out.iterdir()):
                self.out.rmdir()

    def _checksums(self) -> Dict[str, str]:
        """Makes sure that the archives are there; returns their SHA-256."""
        known = self.manifest.data.get("archives", {})
        sums = {}
        for archive in self.recipe.archives:
            path = self.archives / archive.name
            if not path.exists() and archive.name in known and "tok" in self.manifest.data["stages"]:
                sums[archive.name] = known[archive.name]["sha256"]  # deleted after use, which is fine
                continue
            if self.options.source is None:
                path = download(archive, self.archives, self.options.mirrors)
            sums[archive.name] = verify(archive, path)
        return sums

    def _keys(self) -> Dict[str, str]:
        """Returns for each stage what its result depends on, condensed."""
        splits = self._described["splits"]
        tok = make_key(FORMAT, self.recipe.name, self.langs, splits, self.recipe.hold_out, self._sums)
        codes = make_key(tok, self.options.subwords, self.tokens)
        return {"tok": tok, "codes": codes, "bpe": make_key(codes, "bpe"), "bin": make_key(codes, "bin")}

    def _refuse_changes(self, keys: Dict[str, str]) -> None:
        """Compares with the recorded options; a difference is an error unless it may be overwritten."""
        stages = self.manifest.data["stages"]
        changed = [stage for stage in STAGES if stage in stages and stages[stage]["key"] != keys[stage]]
        if changed and not self.options.overwrite:
            before = self.manifest.data.get("options", {})
            what = [
                f"{name} was {before.get(name)} and is {value}"
                for name, value in sorted(self._described.items())
                if name != "splits" and before.get(name) != value
            ]
            old = self.manifest.data.get("archives", {})
            what += [
                f"{name} is another file"
                for name, digest in sorted(self._sums.items())
                if old.get(name, {}).get("sha256") not in (None, digest)
            ]
            raise DataPrepError(
                f"{self.out} was made otherwise ({'; '.join(what) or 'other settings'}); "
                f"give --overwrite to redo {', '.join(changed)}, or another --out"
            )
        for stage in changed:
            self._outdated += [self.out / name for name in stages.pop(stage)["files"]]

    def _begin(self) -> None:
        """Writes down the options before the first result, and removes results of other options."""
        self.manifest.data.update(
            {
                "options": self._described,
                "versions": package_versions(("sacremoses", "sentencepiece", "fairseq", "fairseq-fixed", "torch")),
                "archives": {name: {"sha256": digest} for name, digest in self._sums.items()},
            }
        )
        self.manifest.save()
        for path in self._outdated:
            if path.exists():
                path.unlink()
        self._outdated = []

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
            command = [sys.executable, "-m", "fairseq_cli.preprocess"]
            command += ["--source-lang", self.recipe.source, "--target-lang", self.recipe.target]
            for flag, name in (("--trainpref", "train"), ("--validpref", "valid"), ("--testpref", "test")):
                command += [flag, str(self.out / "bpe" / name)]
            command += ["--destdir", str(folder), "--joined-dictionary", "--workers", str(pool.workers)]
            logger.info("%s", " ".join(command))
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
            if done.returncode:
                last = (done.stdout.strip().splitlines() or ["no message"])[-1]
                raise DataPrepError(f"fairseq-preprocess failed: {last}")
            # fairseq finds data by this name; a log with the temporary path would only mislead
            log = folder / "preprocess.log"
            if log.exists():
                log.unlink()
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
