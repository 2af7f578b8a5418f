"""What translations are compared with: the prepared text and the text as published, not what fairseq prints.

The references in the output of fairseq-generate went through the dictionary, where a subword that training never had is
``<<unk>>``. data_prep keeps the prepared text in ``tok/`` beside ``bin/``, and the published one in ``ref/``.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

from powernorm_fairseq import scoring

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
    name = "{}.{}".format(subset, lang)
    beside = data.resolve().parent
    try:
        options = json.loads((beside / "manifest.json").read_text(encoding="utf-8"))["options"]
    except (OSError, ValueError, KeyError):
        options = None
    if options is None:  # not data_prep's: whatever lies beside it may be something else
        return References(tuple(prepared), tuple(published), given=bool(prepared))
    own = [path for path in (beside / "tok" / name,) if path.is_file()]
    raw = [path for path in (beside / "ref" / name,) if path.is_file()]
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
    if not references.given:
        if texts and len(texts[0].lines) != len(printed):
            _say("{} has {} lines and the data {}; ".format(texts[0].name, len(texts[0].lines), len(printed)), printed)
            return [scoring.Text.of("the output of fairseq-generate", printed)], []
        if not texts:
            if any(UNKNOWN in line for line in printed):
                _say("the prepared text is not beside the data; ", printed)
            texts = [scoring.Text.of("the output of fairseq-generate", printed)]
        else:
            _check(texts[0], printed)
    return texts, [scoring.Text.read(path) for path in references.published]


def _say(why: str, printed: List[str]) -> None:
    unknown = sum(UNKNOWN in line for line in printed)
    print(
        "evaluate: {}references are those that fairseq printed, {} of {} with an unknown subword; --ref FILE names "
        "better ones".format(why, unknown, len(printed)),
        file=sys.stderr,
    )


def _check(text: scoring.Text, printed: List[str]) -> None:
    """Refuses prepared text that the data was not made from."""
    for number, (line, known) in enumerate(zip(text.strings(), printed), 1):
        if UNKNOWN not in known and "".join(line.split()) != "".join(known.split()):
            raise scoring.ScoringError(
                "line {} of {} is not what the data was made from; give --ref FILE".format(number, text.name)
            )
