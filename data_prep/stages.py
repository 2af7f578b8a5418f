"""Work done stage by stage in an output folder: skipped where it is finished, refused where options have changed."""

import argparse
import dataclasses
import fcntl
import logging
import os
import shutil
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Collection, Dict, Iterator, List, Optional, Tuple

from data_prep import binarize
from data_prep.download import download, file_sha256, verify
from data_prep.errors import DataPrepError
from data_prep.extract import extract
from data_prep.manifest import Manifest, package_versions, writing_folder
from data_prep.parallel import WorkerPool
from data_prep.recipes import SPLITS, Recipe, Split

logger = logging.getLogger("data_prep")

_RESULTS = ("tok", "ref", "bpe", "bin")
_PACKAGES = ("sacremoses", "sentencepiece", "fairseq", "fairseq-fixed", "torch")


def option(default: Any, explained: str, **settings: Any) -> Any:
    """A field of options that is one of the command line, too.

    Args:
        default: as of a dataclass.
        explained: what ``--help`` says of it.
        settings: of argparse; ``flag`` where it is not the name of the field.
    """
    return dataclasses.field(default=default, metadata={"help": explained, **settings})


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """What all runs have."""

    out: Path = option(dataclasses.MISSING, "where the results go", type=Path, metavar="DIR", required=True)
    source: Optional[Path] = option(
        None,
        "archives already downloaded, under their published names (default: fetch them to OUT/archives)",
        flag="--from",
        type=Path,
        metavar="DIR",
    )
    mirrors: Tuple[str, ...] = option(
        (), "folder on a server to try first; repeatable", flag="--mirror", action="append", metavar="URL"
    )
    workers: Optional[int] = option(None, "processes (default: all cores)", type=int, metavar="N")
    until: str = "bin"
    overwrite: bool = option(False, "redo stages whose options have changed")
    dry_run: bool = option(False, "say what would be done")

    @classmethod
    def add_to(cls, parser: argparse.ArgumentParser, leave_out: Collection[str] = ()) -> None:
        """Adds the options to a command line."""
        for item in dataclasses.fields(cls):
            if item.metadata and item.name not in leave_out:
                settings = dict(item.metadata)
                flag = settings.pop("flag", "--" + item.name.replace("_", "-"))
                if item.type is bool:
                    settings["action"] = "store_true"
                elif item.default not in (dataclasses.MISSING, ()):
                    settings["default"] = item.default
                parser.add_argument(flag, dest=item.name, **settings)

    @classmethod
    def of(cls, args: argparse.Namespace, **own: Any) -> Any:
        """From the command line, with further settings; what is not given has its default."""
        given = {item.name: getattr(args, item.name, None) for item in dataclasses.fields(cls)}
        given = {name: tuple(v) if isinstance(v, list) else v for name, v in given.items() if v is not None}
        return cls(**{**given, **own})


class StagedRun:
    """One run in one folder. A subclass has a method ``_stage_NAME(key, pool)`` for each of its stages.

    Args:
        recipe: what to make.
        options: what all runs have, and what this kind has beside it.
        described: what the results depend on, as it is written down and shown.

    Attributes:
        stages: names of the stages, in order.
        seconds: how long each stage took that was not done already.
    """

    stages: Tuple[str, ...] = ()

    def __init__(self, recipe: Recipe, options: Any, described: Dict[str, Any]):
        if options.until not in self.stages:
            raise DataPrepError(f"until={options.until!r} is not known; choose from {', '.join(self.stages)}")
        self.recipe = recipe
        self.options = options
        self.out: Path = options.out
        self.seconds: Dict[str, float] = {}
        self.archives: Path = options.source if options.source is not None else self.out / "archives"
        self.raw = self.out / "raw" if recipe.unpack else self.archives
        self.manifest = Manifest(self.out)
        self._wanted = self.stages[: self.stages.index(options.until) + 1]
        self._described = described
        self._sums: Dict[str, str] = {}
        self._outdated: List[Path] = []

    def _keys(self) -> Dict[str, str]:
        """Returns for each stage what its result depends on, condensed."""
        raise NotImplementedError

    def run(self) -> None:
        """Does what is not yet done."""
        with self._locked() as lock:
            self.manifest = Manifest(self.out)
            if not self.manifest.started and not self.options.overwrite:
                present = [name for name in _RESULTS if (self.out / name).exists()]
                if present:
                    raise DataPrepError(
                        f"{self.out} has {', '.join(present)} but no manifest; give --overwrite or another --out"
                    )
            self._sums = self._checksums()
            keys = self._keys()
            self._refuse_changes(keys)
            with WorkerPool(self.options.workers, lock) as pool:
                for stage in self._wanted:
                    if self.manifest.finished(stage, keys[stage]):
                        logger.info("%s: done already", stage)
                        continue
                    start = time.perf_counter()
                    getattr(self, "_stage_" + stage)(keys[stage], pool)
                    self.seconds[stage] = time.perf_counter() - start
                    logger.info("%s: %.1f s", stage, self.seconds[stage])
            self.manifest.save(complete=True)

    def plan(self) -> List[str]:
        """Returns what a run would do, a line for each input and stage."""
        lines = []
        for archive in self.recipe.archives:
            where = self.archives / archive.name
            lines.append(f"read {where}" if where.exists() or self.options.source else f"fetch {archive.urls[0]}")
        lines += [f"read {path}" for path in self._own_files().values()]
        return lines + [f"write {self.out / ('bpe/codes' if stage == 'codes' else stage)}" for stage in self._wanted]

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Keeps a second run out of the folder; leaves no empty folder behind after an error."""
        created = not self.out.exists()
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataPrepError(f"{self.out} cannot be made: {error.strerror}") from None
        handle = os.open(str(self.out), os.O_RDONLY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DataPrepError(f"another run is at work in {self.out}") from None
            except OSError as error:
                logger.warning("%s: no locks here (%s), so see to it that no second run begins", self.out, error)
            yield handle
        finally:
            os.close(handle)
            if created and not any(self.out.iterdir()):
                self.out.rmdir()

    def _own_files(self) -> Dict[str, Path]:
        """The files of the user's own, which no archive has, by the names that the record has for them."""
        found: Dict[str, Path] = {}
        for split, contents in self.recipe.splits.items() if not self.recipe.archives else ():
            for number, text in enumerate(contents.texts):
                for lang in self.recipe.langs:
                    path = self.raw / text.name(lang)
                    name = f"{split}/{number}/{path.name}"
                    found[f"{name}/{lang}" if name in found else name] = path
        return found

    def _checksums(self) -> Dict[str, str]:
        """Makes sure that the input is there; returns the SHA-256 of each file of it."""
        known = self.manifest.data.get("archives", {}) if "tok" in self.manifest.data["stages"] else {}
        sums = {}
        for archive in self.recipe.archives:
            path = self.archives / archive.name
            if archive.name in known and not path.exists():  # the first stage has used it, so it may be deleted
                sums[archive.name] = known[archive.name]["sha256"]
                continue
            if self.options.source is None and not path.exists():
                download(archive, self.archives, self.options.mirrors)
            sums[archive.name] = verify(path)
        for name, path in self._own_files().items():
            if not path.is_file() and name not in known:
                raise DataPrepError(f"{path}: no such file")
            sums[name] = file_sha256(path) if path.is_file() else known[name]["sha256"]
        trained = {digest: name for name, digest in sums.items() if name.startswith("train/")}
        for name, digest in sums.items():
            if name.startswith(("valid/", "test/")) and digest in trained:
                logger.warning("%s has the same text as %s", name, trained[digest])
        return sums

    def _refuse_changes(self, keys: Dict[str, str]) -> None:
        """Compares with the recorded options; a difference is an error unless it may be overwritten."""
        stages = self.manifest.data["stages"]
        changed = [stage for stage in self.stages if stage in stages and stages[stage]["key"] != keys[stage]]
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
                "versions": package_versions(_PACKAGES),
                "archives": {name: {"sha256": digest} for name, digest in self._sums.items()},
            }
        )
        self.manifest.save()
        for path in self._outdated:
            if path.exists():
                path.unlink()
        self._outdated = []

    def _paths(self, folder: str) -> List[Path]:
        """Returns the files of the splits, the languages of each in turn."""
        return [self.out / folder / f"{split}.{lang}" for split in SPLITS for lang in self.recipe.langs]

    @contextmanager
    def _raw_text(self) -> Iterator[Dict[str, int]]:
        """Unpacks and checks the texts; gives the number of lines of each split."""
        try:
            if self.recipe.unpack:
                self._unpack()
            yield {name: self._check(split) for name, split in self.recipe.splits.items()}
        finally:
            if self.recipe.unpack:
                shutil.rmtree(str(self.raw), ignore_errors=True)

    def _unpack(self) -> None:
        """Unpacks the files that the recipe reads."""
        splits, langs = self.recipe.splits.values(), self.recipe.langs
        wanted = {text.name(lang) for split in splits for text in split.texts for lang in langs}
        paths = [self.archives / archive.name for archive in self.recipe.archives]
        with writing_folder(self.raw) as folder:
            for path in paths:
                logger.info("unpacking %s", path)
                wanted -= {file.relative_to(folder).as_posix() for file in extract(path, folder, wanted)}
            if wanted:
                raise DataPrepError(f"{', '.join(sorted(wanted))} is not in {' nor '.join(map(str, paths))}")

    def _check(self, split: Split) -> int:
        """Checks the texts of a split; returns how many lines they have."""
        total = 0
        for text in split.texts:
            lines = text.check(self.raw, *self.recipe.langs)
            if text.pairs not in (None, lines):
                name = text.name(self.recipe.langs[0])
                logger.warning("%s has %d lines; the published one has %d", name, lines, text.pairs)
            total += lines
        return total

    def _compare(self, counts: Dict[str, int], what: str) -> None:
        """Warns if the splits do not have the sizes that the published archives give."""
        for name, expected in (self.recipe.expected or {}).items():
            if counts[name] != expected:
                logger.warning("%s has %d %s %d", name, counts[name], what, expected)

    def _binarize(self, folder: str, pool: WorkerPool, *limits: int) -> Tuple[int, Dict[str, binarize.Counts]]:
        """Writes fairseq's data, with a joined dictionary of limited size.

        Returns: the words of the dictionary, and for each file what it has.
        """
        langs = self.recipe.langs
        with writing_folder(self.out / "bin") as target:
            counts = pool.count(binarize.count_tokens, *self._paths(folder)[: len(langs)])
            words = binarize.make_dictionary(counts, *limits)
            dictionaries = [target / (f"dict.{lang}.txt" if len(langs) > 1 else "dict.txt") for lang in langs]
            for path in dictionaries:
                binarize.write_dictionary(path, words)
            facts = {}
            for path, dictionary in zip(self._paths(folder), dictionaries * len(SPLITS)):
                split, lang = path.name.split(".", 1)
                stem = target / (f"{split}.{'-'.join(langs)}.{lang}" if len(langs) > 1 else split)
                facts[path.name] = binarize.binarize(path, dictionary, stem, pool)
        return sum(count > 0 for _, count in words), facts
