"""Small corpora in the form in which the real ones are published."""

import gzip
import io
import random
import tarfile
from pathlib import Path
from typing import Dict, List, Tuple

WORDS = {
    "de": "Haus Hund läuft schnell über die Straße usw. z.B. Dr. Müller 3. 1.000 Äpfel-Birnen's „Ja“ (nein)".split(),
    "en": "house dog runs quickly across the street etc. e.g. Dr. Miller's May 1,000 well-known “yes” (no) &".split(),
}


def sentences(seed: int, count: int) -> List[Tuple[str, str]]:
    """Returns pairs of sentences of random words, German and English, of similar length."""
    generator = random.Random(seed)
    pairs = []
    for _ in range(count):
        length = generator.randint(1, 14)
        german = " ".join(generator.choice(WORDS["de"]) for _ in range(length))
        english = " ".join(generator.choice(WORDS["en"]) for _ in range(max(1, length + generator.randint(-2, 2))))
        pairs.append((german + generator.choice(".!?"), english + generator.choice(".!?")))
    return pairs


def sides(pairs: List[Tuple[str, str]]) -> Dict[str, List[str]]:
    """Returns the lines of each language."""
    return {"de": [pair[0] for pair in pairs], "en": [pair[1] for pair in pairs]}


def write_tgz(path: Path, files: Dict[str, str]) -> None:
    """Writes an archive of text files."""
    with tarfile.open(str(path), "w:gz") as tar:
        for name, text in files.items():
            data = text.encode("utf-8")
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def _joined(lines: List[str]) -> str:
    return "".join(line + "\n" for line in lines)


def _segments(lines: List[str]) -> str:
    body = "".join(f'<seg id="{number}"> {line} </seg>\n' for number, line in enumerate(lines, 1))
    return f'<?xml version="1.0"?>\n<refset>\n<doc docid="1">\n<title>A title</title>\n{body}</doc>\n</refset>\n'


def write_iwslt14(folder: Path, train: int = 300) -> None:
    """Writes ``de-en.tgz``."""
    files = {}
    talk = sides(sentences(1, train))
    odd = {
        "de": [
            "",
            "   ",
            "<title>Ein Titel</title>",
            "<description>TED: Was?</description>",
            "Kurz.",
            "it’s \u00a0NBSP",
        ],
        "en": [
            "",
            "x",
            "<title>A title</title>",
            "<description>TED: What?</description>",
            "a " * 40,
            "it’s \u00a0NBSP",
        ],
    }
    for lang in ("de", "en"):
        head = ["<url>http://x.org</url>", "<keywords>a, b</keywords>", "<talkid>1</talkid>"]
        files[f"de-en/train.tags.de-en.{lang}"] = _joined(head + talk[lang] + odd[lang] + head)
        for index, name in enumerate(("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")):
            lines = sides(sentences(10 + index, 5))[lang]
            lines[0] = f"{name} it’s &amp; " + lines[0]
            files[f"de-en/IWSLT14.{name}.de-en.{lang}.xml"] = _segments(lines)
    files["de-en/README"] = "not wanted\n"
    write_tgz(folder / "de-en.tgz", files)


def write_wmt14(folder: Path, commentary: str = "v12", train: int = 150) -> None:
    """Writes the five archives of WMT14."""
    texts = {}
    for index, name in enumerate(("training/europarl-v7", "commoncrawl", f"training/news-commentary-{commentary}")):
        pairs = sentences(20 + index, train)
        pairs[3:3] = [("", "empty"), ("\u200b Null\x07 \u2018x\u2019", "zero\ufeff 5\u00a0000"), ("a " * 90, "b " * 90)]
        pairs[9:9] = [("CR\r mitten", "CR \rinside"), ("„Er sagt.“", "“He says.”"), ("Ein Wort", "w " * 30)]
        texts[name] = sides(pairs)
    archive_of = {
        "training/europarl-v7": "training-parallel-europarl-v7.tgz",
        "commoncrawl": "training-parallel-commoncrawl.tgz",
        f"training/news-commentary-{commentary}": f"training-parallel-nc-{commentary}.tgz",
    }
    for name, archive in archive_of.items():
        write_tgz(folder / archive, {f"{name}.de-en.{lang}": _joined(texts[name][lang]) for lang in ("de", "en")})
    valid, test = sides(sentences(30, 12)), sides(sentences(31, 12))
    write_tgz(folder / "dev.tgz", {f"dev/newstest2013.{lang}": _joined(valid[lang]) for lang in ("de", "en")})
    write_tgz(
        folder / "test-full.tgz",
        {
            "test-full/newstest2014-deen-src.en.sgm": _segments(["it’s – „so“"] + test["en"]),
            "test-full/newstest2014-deen-ref.de.sgm": _segments(["es ist’s – „so“"] + test["de"]),
        },
    )


def write_multi30k(folder: Path, train: int = 200) -> None:
    """Writes the eight compressed files of Multi30k."""
    for index, (name, count) in enumerate(
        (("train", train), ("val", 20), ("test_2016_flickr", 15), ("test_2017_flickr", 10))
    ):
        for lang, lines in sides(sentences(40 + index, count)).items():
            write_gz(folder / f"{name}.{lang}.gz", _joined(lines).encode("utf-8"))


def write_gz(path: Path, data: bytes) -> None:
    """Writes a compressed file that depends on its contents alone."""
    path.write_bytes(gzip.compress(data, mtime=0))


def read_gz(path: Path) -> bytes:
    """Returns the contents of a compressed file."""
    return gzip.decompress(path.read_bytes())


def snapshot(folder: Path) -> Dict[str, bytes]:
    """Returns all files below a folder, with their contents."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
