"""Weight centralisation, the partner of MABN."""

from typing import Any

from torch import nn


class CentralisedLinear(nn.Linear):
    """A linear layer that uses W minus its mean over the inputs.

    The parameter stays as it is, and so do its name and its place in a checkpoint. Reading ``weight`` gives the
    centralised one, because attention blocks hand the weights of their layers to a function instead of calling them.
    """

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        return value - value.mean(1, keepdim=True) if name == "weight" else value


def centralise_weight(linear: nn.Linear) -> None:
    """Makes a linear layer use its weight minus the mean over the inputs.

    MABN normalises by second moments alone; centred weights in front of it keep the mean of its input near zero
    (`Yan et al., 2020 <https://arxiv.org/abs/2001.06838>`_, section 4.3).
    """
    if type(linear) is not nn.Linear:
        raise TypeError(f"only a torch.nn.Linear can be centralised, not a {type(linear).__name__}")
    linear.__class__ = CentralisedLinear
