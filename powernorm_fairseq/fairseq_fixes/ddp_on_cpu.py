"""``--ddp-backend pytorch_ddp``, the default, crashes on a CPU: fairseq names a GPU to it in any case.

Mended by naming none where the model is on a CPU.
"""

from typing import Any


def install() -> None:
    """Makes several processes on CPUs work with torch's own data parallelism."""
    from fairseq.models import distributed_fairseq_model

    torch_ddp = distributed_fairseq_model.DistributedDataParallel

    def build(module: Any, *args: Any, device_ids: Any = None, output_device: Any = None, **more: Any) -> Any:
        if next(module.parameters()).device.type == "cpu":
            device_ids = output_device = None
        return torch_ddp(module, *args, device_ids=device_ids, output_device=output_device, **more)

    distributed_fairseq_model.DistributedDataParallel = build
