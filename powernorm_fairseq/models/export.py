"""``torch.export`` of a trained translation model: the encoder, and one step of decoding.

``python -m powernorm_fairseq.models.export CHECKPOINT --out DIR`` writes ``encoder.pt2`` and ``step.pt2``. They consist
of torch's own operators, for any batch and any length, and run where neither fairseq nor this package is installed:

    encoder, step = (torch.export.load(name).module() for name in ("encoder.pt2", "step.pt2"))
    memory, padding, state = encoder(source)                                  # source: B x S, padded anywhere
    log_probs, state = step(newest_tokens, state, memory, padding)            # B x V; the first tokens are eos

``state`` grows by one position with each step, and a beam search reorders it with ``state.index_select(2, order)``.
"""

import argparse
import copy
import sys
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import torch
from fairseq import checkpoint_utils, utils
from torch import Tensor, nn

from powernorm_fairseq.console import program
from powernorm_fairseq.files import written_aside
from powernorm_fairseq.safe_load import has_native_allow_list


class Programs(NamedTuple):
    """Two ``torch.export.ExportedProgram``: see the classes of the same names."""

    encoder: Any
    step: Any


class Positions(nn.Module):
    """fairseq's position embeddings by a look-up alone; its own code asks how long the input is while it runs."""

    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        table = embedding.weight if isinstance(embedding, nn.Embedding) else embedding.weights
        self.register_buffer("table", table.detach().clone())
        self.padding_idx = embedding.padding_idx

    def forward(self, tokens: Tensor) -> Tensor:
        """Embeddings of a batch, B x T x C; positions are counted without padding."""
        return nn.functional.embedding(utils.make_positions(tokens, self.padding_idx), self.table)

    def at(self, position: int) -> Tensor:
        """The embedding of one position, counted from 0."""
        return self.table.index_select(0, torch.full((1,), self.padding_idx + 1 + position))


class Encoder(nn.Module):
    """Source tokens (B x S) to what decoding needs of them.

    Returns ``memory``, the keys and values of the decoder's attention to the source (layers x 2 x B x heads x S x
    width), ``padding`` (B x S, true at padding) and an empty ``state`` to decode from.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.encoder = model.encoder
        self.attention = nn.ModuleList(layer.encoder_attn for layer in model.decoder.layers)

    def forward(self, tokens: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        """The mask goes to every layer; fairseq first looks whether there is padding at all."""
        padding = tokens.eq(self.encoder.padding_idx)
        x, _ = self.encoder.forward_embedding(tokens)
        x = (x * (~padding).unsqueeze(-1).type_as(x)).transpose(0, 1)
        for layer in self.encoder.layers:
            x = layer(x, encoder_padding_mask=padding)
        if self.encoder.layer_norm is not None:
            with self.encoder.padding.of(padding):
                x = self.encoder.layer_norm(x)
        memory = torch.stack(
            [_heads(projection(x), each) for each in self.attention for projection in (each.k_proj, each.v_proj)]
        ).unflatten(0, (-1, 2))
        return memory, padding, memory[..., :0, :].clone()


class Step(nn.Module):
    """One step of decoding: the newest tokens (B) and the state to log-probabilities (B x V) and the next state.

    A sentence that has ended may be fed anything; what comes out for it is not to be used.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.decoder = model.decoder

    def forward(self, tokens: Tensor, state: Tensor, memory: Tensor, padding: Tensor) -> Tuple[Tensor, Tensor]:
        """``state`` has the keys and values of the positions before, as ``memory`` has those of the source."""
        decoder = self.decoder
        x = decoder.embed_scale * decoder.embed_tokens(tokens)
        if decoder.quant_noise is not None:
            x = decoder.quant_noise(x)
        if decoder.project_in_dim is not None:
            x = decoder.project_in_dim(x)
        if decoder.embed_positions is not None:
            x = x + decoder.embed_positions.at(state.shape[-2])
        if decoder.layernorm_embedding is not None:
            x = decoder.layernorm_embedding(x)
        x = x.unsqueeze(0)
        kept: Dict[str, Any] = {}
        new: List[Tensor] = []
        for layer, own, source in zip(decoder.layers, state, memory):
            layer.self_attn._set_input_buffer(kept, {"prev_key": own[0], "prev_value": own[1]})
            layer.encoder_attn._set_input_buffer(
                kept, {"prev_key": source[0], "prev_value": source[1], "prev_key_padding_mask": padding}
            )
            x, _, _ = layer(x, x, padding, kept)  # the second is there to say that there is a source: it is kept
            buffer = layer.self_attn._get_input_buffer(kept)
            new.append(torch.stack([buffer["prev_key"], buffer["prev_value"]]))
        if decoder.layer_norm is not None:
            x = decoder.layer_norm(x)
        if decoder.project_out_dim is not None:
            x = decoder.project_out_dim(x)
        return decoder.output_layer(x[0]).float().log_softmax(-1), torch.stack(new)


def _heads(x: Tensor, attention: nn.Module) -> Tensor:
    """T x B x C to B x heads x T x width, the order in which fairseq keeps keys and values."""
    return x.unflatten(-1, (attention.num_heads, attention.head_dim)).permute(1, 2, 0, 3)


def export_model(model: nn.Module) -> Programs:
    """Exports a ``powernorm_transformer`` on the CPU, in evaluation mode; the model itself stays as it is.

    Raises:
        RuntimeError: torch is older than 2.6.
        ValueError: the model is of another kind, or has a part that is not exported.
    """
    if not has_native_allow_list():
        raise RuntimeError(f"exporting a model takes torch 2.6 or newer, and this is {torch.__version__}")
    if not hasattr(model, "encoder"):
        raise ValueError("this is a language model; only translation models (powernorm_transformer) are exported")
    cfg = model.cfg
    for setting in ("cross_self_attention", "no_cross_attention"):
        if getattr(cfg, setting):
            raise ValueError(f"a model with --{setting.replace('_', '-')} is not exported")
    if model.decoder.adaptive_softmax is not None:
        raise ValueError("a model with --adaptive-softmax-cutoff is not exported")
    limits = model.encoder.max_positions(), model.decoder.max_positions()
    model = copy.deepcopy(model).float().cpu().eval()
    model.make_generation_fast_(beamable_mm_beam_size=None, need_attn=False)  # as fairseq-generate does
    for side in (model.encoder, model.decoder):
        if side.embed_positions is not None:
            side.embed_positions = Positions(side.embed_positions)
    batch = torch.export.Dim("batch")
    source = torch.export.Dim("source", max=limits[0])
    past = torch.export.Dim("past", max=limits[1] - 1)
    with torch.no_grad():
        tokens = torch.full((5, 3), model.encoder.padding_idx + 1)
        memory, padding, state = Encoder(model)(tokens)
        encoder = torch.export.export(Encoder(model), (tokens,), dynamic_shapes=({0: batch, 1: source},), strict=False)
        state = state.new_zeros(*state.shape[:-2], 2, state.shape[-1])
        shapes = ({0: batch}, {2: batch, 4: past}, {2: batch, 4: source}, {0: batch, 1: source})
        step = torch.export.export(
            Step(model), (tokens[:, 0].clone(), state, memory, padding), dynamic_shapes=shapes, strict=False
        )
    return Programs(encoder, step)


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m powernorm_fairseq.models.export",
        description="Write encoder.pt2 and step.pt2, torch.export's programs of a trained translation model. "
        "docs/scoring.md shows how they are used.",
    )
    parser.add_argument("checkpoint", type=Path, help="a checkpoint of powernorm_transformer")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the two files")
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="folder of the dictionaries (default: the one of the training)"
    )
    return parser


@program("export", RuntimeError, ValueError)
def main(argv: Sequence[str]) -> int:
    """Exports as the command line says; returns the exit status."""
    args = build_parser().parse_args(argv)
    utils.import_user_module(argparse.Namespace(user_dir=str(Path(__file__).resolve().parents[1])))
    overrides = {} if args.data is None else {"data": str(args.data)}
    models, _, _ = checkpoint_utils.load_model_ensemble_and_task([str(args.checkpoint)], overrides)
    programs = export_model(models[0])
    args.out.mkdir(parents=True, exist_ok=True)
    for name, exported in zip(Programs._fields, programs):
        path = args.out / f"{name}.pt2"
        with written_aside(path) as file:
            torch.export.save(exported, file)
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
