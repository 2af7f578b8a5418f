"""What translations are compared with: the prepared text and the text as published, not what fairseq prints.

The references in the output of fairseq-generate went through the dictionary, where a subword that training never had is
``<<unk>>``. data_prep keeps the prepared text in ``tok/`` beside ``bin/``, and the published one in ``ref/``.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

from powernorm_fairseq import files, scoring
from powernorm_fairseq.console import say

UNKNOWN = "<<unk>>"


@dataclass(frozen=True)
class References:
    """Where the references are.

    Attributes:
        prepared: files of the references as the model knows them; empty means what fairseq prints.
        published: files of the references as published; empty where they are not known.
        tokenized: whether the prepared text consists of Moses tokens, and not of plain text.
        lowercased: whether the prepared text was lower-cased.
        given: whether the user named the prepared files.
    """

    prepared: Tuple[Path, ...] = ()
    published: Tuple[Path, ...] = ()
    tokenized: bool = True
    lowercased: bool = False
    given: bool = False

    def describe(self) -> Dict[str, Any]:
        """For the result file."""
        return {
            "prepared": [str(path) for path in self.prepared] or "as fairseq-generate printed them",
            "published": [str(path) for path in self.published] or None,
        }


def find(data: Path, subset: str, lang: str, prepared: Sequence[Path], published: Sequence[Path]) -> References:
    """Finds the references of a subset.

    Args:
        data: folder of binarised data; ``tok/``, ``ref/`` and ``manifest.json`` beside it are data_prep's.
        subset: ``test``, say.
        lang: the target language.
        prepared: files that the user names.
        published: the same.
    """
    beside = data.resolve().parent
    options = files.read_json(beside / "manifest.json").get("options")
    if options is None:  # not data_prep's: whatever lies beside it may be something else
        return References(tuple(prepared), tuple(published), given=bool(prepared))
    kept = [beside / kind / f"{subset}.{lang}" for kind in ("tok", "ref")]
    own, raw = ([path] if path.is_file() else [] for path in kept)
    return References(
        tuple(prepared or own),
        tuple(published or raw),
        tokenized=not options.get("plain", False),
        lowercased=bool(options.get("lowercased", False)),
        given=bool(prepared),
    )


def read(references: References, printed: List[str]) -> Tuple[List[scoring.Text], List[scoring.Text]]:
    """Reads the references, prepared and published; both have as many lines as fairseq printed.

    Args:
        references: what was found.
        printed: the references in fairseq's output, subwords joined.
    """
    texts = [scoring.Text.read(path) for path in references.prepared]
    published = [scoring.Text.read(path) for path in references.published]
    if references.given:
        return texts, published
    unknown, why = sum(UNKNOWN in line for line in printed), ""
    if not texts:
        why = "the prepared text is not beside the data" if unknown else ""
    elif len(texts[0].lines) != len(printed):
        why, published = f"{texts[0].name} has {len(texts[0].lines)} lines and the data {len(printed)}", []
    else:
        for number, (line, known) in enumerate(zip(texts[0].strings(), printed), 1):
            if UNKNOWN not in known and "".join(line.split()) != "".join(known.split()):
                raise scoring.ScoringError(
                    f"line {number} of {texts[0].name} is not what the data was made from; give --ref FILE"
                )
        return texts, published
    if why:
        say(
            "evaluate",
            f"{why}; references are those that fairseq printed, {unknown} of {len(printed)} with an unknown subword; "
            "--ref FILE names better ones",
        )
    return [scoring.Text.of("the output of fairseq-generate", printed)], published
