"""``--bf16`` and ``--memory-efficient-bf16`` crash: fairseq's argparse takes bfloat16 for a TPU, on any device.

Its hydra does not, but there ``memory_efficient_bf16`` and ``memory_efficient_fp16`` without ``bf16`` or ``fp16`` are
ignored and the training has full precision. Mended by believing ``--tpu`` alone, and by what the flags say they imply.
``--fp16`` on a CPU, whose flat copy of the parameters asks CUDA for its device, gets a sentence.
"""

from typing import Any

from powernorm_fairseq.around import around

EXCLUSIVE = "--fp16 and --bf16 exclude each other, and a TPU has no --fp16; choose one"


def install() -> None:
    """Makes the flags of half precision mean what they say."""
    from fairseq import options
    from fairseq.optim import FP16Optimizer
    from fairseq.trainer import Trainer

    fairseq_build = FP16Optimizer.build_optimizer.__func__

    @around(options, "parse_args_and_arch")
    def parse_args_and_arch(fairseq_parse: Any, parser: Any, input_args: Any = None, *args: Any, **more: Any) -> Any:
        try:
            result = fairseq_parse(parser, input_args, *args, **more)
        except ValueError as error:
            if "--fp16 and --tpu" in str(error):
                raise ValueError(EXCLUSIVE) from None
            raise
        namespace = result[0] if isinstance(result, tuple) else result
        if getattr(namespace, "bf16", False) and getattr(namespace, "tpu", False):
            namespace.tpu = parser.parse_known_args(input_args)[0].tpu  # what was typed
        return result

    @around(Trainer, "__init__")
    def init(fairseq_init: Any, self: Any, cfg: Any, *args: Any, **more: Any) -> None:
        common = getattr(cfg, "common", None)
        if common is not None:  # what the flags imply
            common.bf16 = common.bf16 or common.memory_efficient_bf16
            common.fp16 = common.fp16 or common.memory_efficient_fp16
            if common.bf16 and common.fp16:
                raise ValueError(EXCLUSIVE)
        fairseq_init(self, cfg, *args, **more)

    def build_optimizer(cls: Any, cfg: Any, params: Any, **kwargs: Any) -> Any:
        params = list(params)
        if cfg.common.fp16 and not cfg.common.fp16_no_flatten_grads and not params[0].is_cuda and not cfg.common.tpu:
            raise ValueError(
                "--fp16 keeps a flat copy of the parameters on a GPU, and this training is on a CPU; there use --bf16, "
                "or no flag for full precision (or add --fp16-no-flatten-grads)"
            )
        return fairseq_build(cls, cfg, params, **kwargs)

    FP16Optimizer.build_optimizer = classmethod(build_optimizer)
