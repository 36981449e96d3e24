"""How a module lies on several devices: whole on each (ddp), or every tensor cut along its first dimension (fsdp).

Either way the gradient is averaged over the ranks. What else touches weights asks here for `local`, this rank's part
of a tensor, or `whole`; for a tensor that is not cut both are the tensor.
"""

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nmt import ops

Parallel = Literal["ddp", "fsdp"]
ModuleT = TypeVar("ModuleT", bound=nn.Module)


def distribute(module: nn.Module, device: torch.device, parallel: Parallel) -> nn.Module:
    """The module whose backward pass averages gradients over the ranks. Under fsdp its parameters are replaced."""
    if parallel == "fsdp":
        return _shard(module, device)
    ddp, ids = nn.parallel.DistributedDataParallel, [device.index] if device.type == "cuda" else None
    # Buffers are tables of positions, the same everywhere, which each rank lengthens when it has to. torch 2.13 warns
    # of the name of this option that torch 2.11 knows alone.
    names = ("forward_sync_buffers", "broadcast_buffers")
    sync = next(name for name in names if name in inspect.signature(ddp).parameters)
    return ddp(module, device_ids=ids, gradient_as_bucket_view=True, **cast(Any, {sync: False}))


def _shard(module: nn.Module, device: torch.device) -> nn.Module:
    # Imported where it is used: it takes longer than a small model takes to train.
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    for tensor in [*module.parameters(), *module.buffers()]:
        dist.broadcast(tensor.detach(), src=0)  # as ddp does: machines may differ in the last bit of a first weight
    mesh = DeviceMesh.from_group(cast(Any, dist.group.WORLD), device.type)
    stacks = [part for part in module.modules() if isinstance(part, nn.ModuleList)]
    # One layer's weights are gathered while another computes; embeddings and the rest stay gathered from the forward
    # to the backward pass, since both ends of the model need them.
    for layer in (layer for stack in stacks for layer in stack):
        fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    return module


@contextmanager
def exchange(module: nn.Module, *, now: bool) -> Iterator[None]:
    """The context of a backward pass: gradients are exchanged in the last one of an update only."""
    if isinstance(module, nn.parallel.DistributedDataParallel):
        if now:
            yield
        else:
            with module.no_sync():
                yield
    else:
        cast(Any, module).set_requires_gradient_sync(now)
        yield


def is_cut(tensor: Tensor) -> bool:
    """Whether a tensor is in parts on the ranks."""
    return hasattr(tensor, "full_tensor")  # not by its class, whose import takes a second


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor; it may be empty. They share memory."""
    part: Tensor = cast(Any, tensor).to_local() if is_cut(tensor) else tensor
    return part


def whole(tensor: Tensor) -> Tensor:
    """The tensor with the parts of all ranks: all must ask together."""
    entire: Tensor = cast(Any, tensor).full_tensor() if is_cut(tensor) else tensor
    return entire


def laid_out_like(like: Tensor, tensor: Tensor) -> Tensor:
    """A copy of a whole tensor that lies on the devices as another one of its shape does."""
    if not is_cut(like) or like.shape != tensor.shape:
        return tensor.to(like.device, copy=True)
    from torch.distributed.tensor import distribute_tensor

    cut = cast(Any, like)
    # Every rank has the whole, so it takes its part and nobody sends anything.
    part: Tensor = distribute_tensor(tensor.to(like.device), cut.device_mesh, cut.placements, src_data_rank=None)
    return part.clone()


def gather(tensors: Mapping[str, Tensor], *, here: bool) -> dict[str, Tensor]:
    """Whole tensors where they are wanted, which is `here` or not; {} elsewhere. All ranks must ask together.

    What was cut is put together one tensor at a time and kept in the memory of the host: no device holds it all.
    """
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        entire = whole(tensor.detach())
        if here:
            found[name] = entire.cpu() if is_cut(tensor) else entire
    return found


def total_norm(grads: list[Tensor]) -> Tensor:
    """The norm of all gradients as one vector, the same on every rank, 0-dim."""
    parts = [local(grad) for grad in grads]
    norm = ops.total_norm(parts)
    if not any(map(is_cut, grads)):
        return norm
    square = norm.double().square()
    dist.all_reduce(square)
    return square.sqrt().to(norm.dtype)


def twin_of(model: ModuleT) -> ModuleT:
    """A whole model on the host, to be filled with the weights of one that is about to be cut."""
    return copy.deepcopy(model).cpu()


def checksum(tensors: list[Tensor]) -> int:
    """A number that follows from the bits of this rank's part of some tensors, wherever they lie."""
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    sums = [local(t).detach().contiguous().view(integers[t.element_size()]).sum(dtype=torch.int64) for t in tensors]
    total = 0
    for number in torch.stack(sums).tolist():
        total = (total * 1_000_003 + number) % (1 << 62)  # the order counts
    return total
