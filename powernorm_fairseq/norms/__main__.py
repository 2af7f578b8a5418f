"""Says what computes the norms on this machine, and why: ``python -m powernorm_fairseq.norms``."""

import torch

from powernorm_fairseq.norms import kernels

if __name__ == "__main__":
    try:
        print(f"torch {torch.__version__}; norms on a CPU: {kernels.describe()}")
    except ValueError as error:  # POWERNORM_KERNEL
        raise SystemExit(str(error)) from None
    reason = "no CUDA device" if not torch.cuda.is_available() else kernels.unusable("triton")
    print(f"norms on a GPU: {'triton' if reason is None else f'eager ({reason})'}")
