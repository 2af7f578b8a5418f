"""How the processes of a training share an update, and what their norms' statistics are taken over.

The learning rate fits a number of tokens in an update, and batch-wise norms fit a number of tokens in a batch. Both are
the recipe's wherever that can be. With fewer processes than the recipe is for, gradients are accumulated. With more,
the batch of each is smaller. Where a number cannot be kept, a sentence says so.
"""

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from powernorm_fairseq.labels import TOKEN_NORMS

Flags = Mapping[str, Sequence[str]]


def divide(tokens: int, usual: int, processes: int, began: Optional[int] = None) -> Tuple[int, int]:
    """Tokens in a batch of each process, and batches in an update.

    Args:
        tokens: in a batch of the recipe.
        usual: processes of the recipe.
        processes: that there are.
        began: tokens in a batch of a training that goes on; kept if it can be.
    """
    if began is not None and began * processes <= tokens * usual:
        return began, max(1, round(tokens * usual / (began * processes)))
    if processes <= usual:
        return tokens, max(1, round(usual / processes))
    return tokens * usual // processes, 1


def statistics_tokens(flags: Flags, tokens: int, processes: int) -> Optional[int]:
    """Over how many tokens at most a norm's statistics are taken; None if the model has no norm with any."""
    names = {name for flag in ("--encoder-norm", "--decoder-norm", "--norm") for name in flags.get(flag, ())}
    return tokens * (processes if "--sync-norm" in flags else 1) if names - TOKEN_NORMS else None


def describe(flags: Flags, processes: int) -> Dict[str, Any]:
    """What must stay the same when a training goes on."""
    tokens = int(flags["--max-tokens"][0])
    return {"tokens": tokens, "statistics": statistics_tokens(flags, tokens, processes)}


def warnings(flags: Flags, tokens: int, usual: int, processes: int, given: Flags) -> List[str]:
    """What differs from the recipe, in sentences.

    Args:
        flags: of the training.
        tokens: in a batch of the recipe.
        usual: processes of the recipe.
        processes: that there are.
        given: flags of the user, who knows about those.
    """
    if "--max-tokens" in given or "--update-freq" in given or "--batch-size" in given:
        return []
    found = []
    own, frequency = int(flags["--max-tokens"][0]), int(flags["--update-freq"][0])
    off = own * frequency * processes / (tokens * usual) - 1
    if abs(off) > 0.005:
        found.append(
            "an update has {} x {} x {} tokens (batch, batches, processes), {:.1%} {} than the recipe's {}".format(
                own, frequency, processes, abs(off), "more" if off > 0 else "fewer", tokens * usual
            )
        )
    before, now = statistics_tokens(flags, tokens, usual), statistics_tokens(flags, own, processes)
    if before and now and abs(now / before - 1) > 0.005:
        if "--sync-norm" in flags:
            cure = f"{usual} processes keep it"
        else:
            few = "one process keeps" if usual == 1 else f"{usual} or fewer processes keep"
            cure = few + " it, as does -- --sync-norm on more"
        found.append(
            f"the norms' statistics are taken over {now} tokens, not over the recipe's {before}: another experiment; "
            f"{cure}"
        )
    return found
