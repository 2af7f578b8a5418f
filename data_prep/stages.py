"""Work done stage by stage in an output folder: skipped where it is finished, refused where options have changed."""

import argparse
import logging
import os
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from data_prep.download import Archive, download, file_sha256, verify
from data_prep.errors import DataPrepError
from data_prep.manifest import Manifest, package_versions
from data_prep.parallel import WorkerPool, kept_from_workers

logger = logging.getLogger("data_prep")

SPLITS = ("train", "valid", "test")
_PACKAGES = ("sacremoses", "sentencepiece", "fairseq", "fairseq-fixed", "torch")


def add_common_options(parser: argparse.ArgumentParser, stages: Sequence[str], archives: bool) -> None:
    """Adds the options of all corpora: those that :class:`StagedRun` takes, and ``--dry-run``."""
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the results go")
    if archives:
        parser.add_argument(
            "--from",
            dest="source",
            type=Path,
            metavar="DIR",
            help="archives already downloaded, under their published names (default: fetch them to OUT/archives)",
        )
        parser.add_argument(
            "--mirror", action="append", default=[], metavar="URL", help="folder on a server to try first; repeatable"
        )
    else:
        parser.set_defaults(source=None, mirror=[])
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: all cores)")
    parser.add_argument("--until", choices=stages, default="bin", help="last stage to do (default: %(default)s)")
    parser.add_argument("--overwrite", action="store_true", help="redo stages whose options have changed")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done")


@dataclass(frozen=True)
class RunOptions:
    """What all runs have.

    Attributes:
        out: output folder.
        source: folder with archives already downloaded; ``None`` fetches them.
        workers: processes; ``None`` means all cores.
        mirrors: addresses to try first.
        until: last stage.
        overwrite: do stages again whose options have changed.
    """

    out: Path
    source: Optional[Path] = None
    workers: Optional[int] = None
    mirrors: Tuple[str, ...] = ()
    until: str = "bin"
    overwrite: bool = False

    @classmethod
    def of(cls, args: argparse.Namespace, **own: Any) -> Any:
        """From the command line, with further options of a kind of run."""
        shared = {name: getattr(args, name) for name in ("out", "source", "workers", "until", "overwrite")}
        return cls(**shared, mirrors=tuple(args.mirror), **own)


class StagedRun:
    """One run in one folder. A subclass has a method ``_stage_NAME(key, pool)`` for each of its stages.

    Args:
        options: what all runs have, and what this kind has beside it.
        archives: what the first stage reads.
        described: what the results depend on, as it is written down and shown.

    Attributes:
        stages: names of the stages, in order.
        results: folders that a run makes.
        seconds: how long each stage took that was not done already.
    """

    stages: Tuple[str, ...] = ()
    results: Tuple[str, ...] = ()

    def __init__(self, options: Any, archives: Sequence[Archive], described: Dict[str, Any]):
        self.options = options
        self.out: Path = options.out
        self.seconds: Dict[str, float] = {}
        self.archives: Path = options.source if options.source is not None else self.out / "archives"
        self.manifest = Manifest(self.out)
        self._needed = tuple(archives)
        self._described = described
        self._sums: Dict[str, str] = {}
        self._outdated: List[Path] = []

    def _keys(self) -> Dict[str, str]:
        """Returns for each stage what its result depends on, condensed."""
        raise NotImplementedError

    def run(self) -> None:
        """Does what is not yet done."""
        with self._locked():
            self.manifest = Manifest(self.out)
            if not self.manifest.started and not self.options.overwrite:
                present = [name for name in self.results if (self.out / name).exists()]
                if present:
                    raise DataPrepError(
                        f"{self.out} has {', '.join(present)} but no manifest; give --overwrite or another --out"
                    )
            self._sums = self._checksums()
            keys = self._keys()
            self._refuse_changes(keys)
            wanted = self.stages[: self.stages.index(self.options.until) + 1]
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

    def plan_archives(self) -> List[str]:
        """Returns where the archives would come from, a line for each."""
        lines = []
        for archive in self._needed:
            where = self.archives / archive.name
            lines.append(f"read {where}" if where.exists() or self.options.source else f"fetch {archive.urls[0]}")
        return lines

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
            except BlockingIOError:
                raise DataPrepError(f"another run is at work in {self.out}") from None
            except OSError as error:
                logger.warning("%s: no locks here (%s), so see to it that no second run begins", self.out, error)
            with kept_from_workers(handle):
                yield
        finally:
            os.close(handle)
            if created and not any(self.out.iterdir()):
                self.out.rmdir()

    def _used(self, name: str) -> str:
        """The SHA-256 of an input that the first stage has used; empty if it has not. It may be deleted then."""
        known = self.manifest.data.get("archives", {})
        return known[name]["sha256"] if name in known and "tok" in self.manifest.data["stages"] else ""

    def _add_checksum(self, sums: Dict[str, str], name: str, path: Path) -> None:
        """Adds the SHA-256 of a file of the user's own."""
        if not path.is_file() and not self._used(name):
            raise DataPrepError(f"{path}: no such file")
        sums[name] = file_sha256(path) if path.is_file() else self._used(name)

    def _checksums(self) -> Dict[str, str]:
        """Makes sure that the archives are there; returns their SHA-256."""
        sums = {}
        for archive in self._needed:
            path = self.archives / archive.name
            if not path.exists() and self._used(archive.name):
                sums[archive.name] = self._used(archive.name)
                continue
            if self.options.source is None:
                path = download(archive, self.archives, self.options.mirrors)
            sums[archive.name] = verify(archive, path)
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
