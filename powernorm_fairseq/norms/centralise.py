"""Weight centralisation, the partner of MABN."""

from typing import Any, Dict

from torch import Tensor, nn
from torch.nn.utils import parametrize

_SHORT, _LONG = "weight", "parametrizations.weight.original"  # its name in a checkpoint, and in the module


class Centralised(nn.Module):
    """W minus its mean over the inputs, as a parametrisation: the parameter itself stays as it is."""

    def forward(self, weight: Tensor) -> Tensor:
        """The weight that the layer uses."""
        return weight - weight.mean(1, keepdim=True)

    def right_inverse(self, weight: Tensor) -> Tensor:
        """The parameter for a weight that is assigned."""
        return weight


def centralise_weight(linear: nn.Linear) -> None:
    """Makes a linear layer use its weight minus the mean over the inputs.

    MABN normalises by second moments alone; centred weights in front of it keep the mean of its input near zero
    (`Yan et al., 2020 <https://arxiv.org/abs/2001.06838>`_, section 4.3). In a ``state_dict`` the parameter is called
    ``weight`` as before.
    """
    if type(linear) is not nn.Linear:
        raise TypeError(f"only a torch.nn.Linear can be centralised, not a {type(linear).__name__}")
    parametrize.register_parametrization(linear, "weight", Centralised())
    if not hasattr(linear, "__deepcopy__"):  # torch < 2.0 refuses to copy what is parametrised
        del type(linear).__getstate__
    linear._register_state_dict_hook(_shorten)
    linear._register_load_state_dict_pre_hook(_lengthen)


def _shorten(module: nn.Module, state: Dict[str, Any], prefix: str, metadata: Any) -> None:
    if prefix + _LONG in state:
        state[prefix + _SHORT] = state.pop(prefix + _LONG)


def _lengthen(state: Dict[str, Any], prefix: str, *others: Any) -> None:
    if prefix + _SHORT in state:
        state[prefix + _LONG] = state.pop(prefix + _SHORT)
