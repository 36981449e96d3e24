"""The device that tensors lie on: how torch is to compute there."""

import torch


def set_up(device: str) -> None:
    """Have torch take the kernels that suit our batches on a type of device, cpu or cuda, in all of this process.

    On H100 and H200 it prefers cuDNN's attention, which prepares its work for each shape anew, some tenths of a second
    for every one of hundreds of shapes, and on some versions rounds the rate of dropout to sixteenths. With a mask,
    which is always there, the memory-efficient kernel serves as well.
    """
    if device == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)
