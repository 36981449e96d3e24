"""Distributed training: DDP or FSDP, collectives, and this rank's share of the work. A single process has world size 1.

`torchrun` starts the processes, sets their environment, and ends all of them when one fails.
"""

import contextlib
import importlib
import inspect
import itertools
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nmt import ops
from nmt.errors import MachineError, NmtError
from nmt.processes import process_rank

T = TypeVar("T")


def _shard(module: nn.Module, device: torch.device) -> nn.Module:
    # Imported here because the import takes longer than training a small model.
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    for tensor in [*module.parameters(), *module.buffers()]:
        dist.broadcast(tensor.detach(), src=0)  # as DDP does: machines may differ in the last bit of initial weights
    mesh = DeviceMesh.from_group(cast(Any, dist.group.WORLD), device.type)
    stacks = [submodule for submodule in module.modules() if isinstance(submodule, nn.ModuleList)]
    # The weights of one layer are gathered while another layer computes. Embeddings and the rest stay gathered from the
    # forward to the backward pass, since both ends of the model need them.
    for layer in (layer for stack in stacks for layer in stack):
        fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    return module


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is sharded over the ranks."""
    return hasattr(tensor, "full_tensor")  # importing the class DTensor takes a second


def local(tensor: Tensor) -> Tensor:
    """This rank's shard of a tensor; it may be empty. Both share memory."""
    shard: Tensor = cast(Any, tensor).to_local() if is_sharded(tensor) else tensor
    return shard


def full_tensor(tensor: Tensor) -> Tensor:
    """The tensor assembled from the shards of all ranks. All ranks must call it together."""
    full: Tensor = cast(Any, tensor).full_tensor() if is_sharded(tensor) else tensor
    return full


def shard_like(like: Tensor, tensor: Tensor) -> Tensor:
    """Copy a full tensor to the device and sharding of another tensor of the same shape."""
    if not is_sharded(like) or like.shape != tensor.shape:
        return tensor.to(like.device, copy=True)
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = cast(Any, like).device_mesh, cast(Any, like).placements
    # Every rank holds the full tensor, so each takes its shard without communication.
    sharded: Tensor = distribute_tensor(tensor.to(like.device), mesh, placements, src_data_rank=None)
    return sharded.clone()


def checksum(tensors: list[Tensor]) -> int:
    """A number computed from the bits of this rank's shards, the same on every device."""
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    sums = [local(t).detach().contiguous().view(integers[t.element_size()]).sum(dtype=torch.int64) for t in tensors]
    total = 0
    for number in torch.stack(sums).tolist():
        total = (total * 1_000_003 + number) % (1 << 62)  # depends on the order
    return total


def total_norm(grads: list[Tensor]) -> Tensor:
    """The 0-dim norm of all gradients as one vector, equal on every rank."""
    norm = ops.total_norm([local(grad) for grad in grads])
    if not any(map(is_sharded, grads)):
        return norm
    square = norm.double().square()
    dist.all_reduce(square)
    return square.sqrt().to(norm.dtype)


@dataclass(frozen=True)
class Ranks:
    """This process (rank) among all (world_size), and its device. store: the shared key-value store of several
    processes, else None."""

    rank: int = 0
    world_size: int = 1
    store: Any = None  # torch's stores have no type hints
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    _n_call: Iterator[int] = field(default_factory=itertools.count)  # of on_main

    @property
    def is_main(self) -> bool:
        """Return whether this process writes files and messages."""
        return self.rank == 0

    def share(self, batches: list[T]) -> list[tuple[T, bool]]:
        """Batches of an update for this rank, each with whether it counts: batch i goes to rank i mod world_size. Since
        gradients are exchanged after the last, a rank with fewer batches repeats one, which does not count."""
        n_turn = -(-len(batches) // self.world_size)
        indices = [turn * self.world_size + self.rank for turn in range(n_turn)]
        return [(batches[i], True) if i < len(batches) else (batches[0], False) for i in indices]

    def gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Full tensors on rank 0, {} elsewhere. All ranks must call it together. Sharded tensors are assembled one at a
        time and moved to host memory, since no device can hold all of them."""
        gathered: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            full = full_tensor(tensor.detach())
            if self.is_main:
                gathered[name] = full.cpu() if is_sharded(tensor) else full
        return gathered

    def all_reduce(self, numbers: Tensor) -> Tensor:
        """Sum a tensor over all ranks in place; on a GPU asynchronously."""
        if self.world_size > 1:
            dist.all_reduce(numbers)
        return numbers

    def any(self, value: bool) -> bool:
        """Return whether the value is true on any rank, so that all ranks stop at the same update."""
        return any(self.all_gather(value))

    def all_gather(self, number: int) -> list[int]:
        """The integers of all ranks, in order of rank."""
        if self.world_size == 1:
            return [number]
        numbers = torch.zeros(self.world_size, dtype=torch.int64, device=self.device)
        numbers[self.rank] = number
        return [int(value) for value in self.all_reduce(numbers).tolist()]

    def distribute(self, module: nn.Module, parallel: str) -> nn.Module:
        """Wrap a module so that backward passes average gradients over the ranks. fsdp replaces its parameters, too."""
        if self.world_size == 1:
            return module
        if parallel == "fsdp":
            return _shard(module, self.device)
        ddp, ids = nn.parallel.DistributedDataParallel, [self.device.index] if self.device.type == "cuda" else None
        # Buffers are position tables, equal on all ranks; each rank extends them as needed. torch 2.13 warns of the
        # only option name that torch 2.11 has.
        names = ("forward_sync_buffers", "broadcast_buffers")
        sync = next(name for name in names if name in inspect.signature(ddp).parameters)
        return ddp(module, device_ids=ids, gradient_as_bucket_view=True, **cast(Any, {sync: False}))

    def sync_gradients(self, module: nn.Module, *, now: bool) -> AbstractContextManager[None]:
        """Context manager of a backward pass. now: exchange gradients, for the last pass of an update only."""
        if self.world_size == 1:
            return nullcontext()
        if isinstance(module, nn.parallel.DistributedDataParallel):
            return nullcontext() if now else module.no_sync()
        cast(Any, module).set_requires_gradient_sync(now)
        return nullcontext()

    def on_main(self, work: Callable[[], T]) -> T:
        """Run `work` on rank 0 and return its result, which must fit into JSON, on all ranks. The other ranks wait
        without a time limit."""
        if self.store is None:
            return work()
        key = f"on_main/{next(self._n_call)}"
        if self.is_main:
            result = work()
            self.store.set(key, json.dumps(result))
            return result
        while not self.store.check([key]):
            self._raise_failure()
            time.sleep(0.05)
        return cast(T, json.loads(self.store.get(key)))

    @contextmanager
    def session(self) -> Iterator[None]:
        """Context manager: pass an error of one rank to all others. Raises MachineError for a lost connection."""
        if self.store is None:
            yield
            return
        try:
            yield
            self.any(False)  # a barrier: the store may end with rank 0
        except BaseException as error:
            if _is_broken_connection(error):
                self._raise_failure()
                raise MachineError(
                    f"rank {self.rank} lost contact with another rank, which ended or did not respond within "
                    f"train.timeout ({_summary(error)}). See the output of the other ranks, or the system log of "
                    "their machines. The same command resumes from the last checkpoint."
                ) from None
            code = error.exit_code if isinstance(error, NmtError) else MachineError.exit_code
            name = f"rank {self.rank} (process {os.getpid()} on {socket.gethostname()})"
            with contextlib.suppress(RuntimeError):
                self.store.set("failed", json.dumps([f"{name} stopped with an error: {_summary(error)}", code]))
            raise
        dist.destroy_process_group()

    def _raise_failure(self) -> None:
        """Raise the error of another rank, if one failed."""
        with contextlib.suppress(RuntimeError):
            if self.store.check(["failed"]):
                message, code = json.loads(self.store.get("failed"))
                raise (NmtError if code == NmtError.exit_code else MachineError)(message)


def join(device: torch.device, timeout: float) -> Ranks:
    """Join the process group that torchrun describes in the environment; without one, run alone. On GPUs each rank has
    its own. timeout: seconds. Raises MachineError if a rank is missing, NmtError if a variable is wrong."""
    rank, world_size, local_rank = process_rank()
    if world_size == 1:
        return Ranks(device=device)
    importlib.import_module("torch._dynamo")  # DDP and FSDP would import it later, while other ranks wait
    if device.type == "cuda":
        if local_rank >= (n_gpu := torch.cuda.device_count()):
            raise MachineError(
                f"rank {rank} is process {local_rank + 1} on this machine, which has {n_gpu} GPUs, but each process "
                f"needs its own: start torchrun with --nproc-per-node {n_gpu}."
            )
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    limit, backend = timedelta(seconds=timeout), "nccl" if device.type == "cuda" else "gloo"
    try:
        store, _, _ = next(cast(Any, dist).rendezvous("env://", timeout=limit))
        store = cast(Any, dist).PrefixStore(_agreed_name(store, rank, world_size, timeout), store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=limit)
    except (RuntimeError, ValueError) as error:  # ValueError: of a missing address or a port that is no number
        address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise MachineError(
            f"rank {rank} could not connect to the {world_size - 1} others at {address} within {timeout:g} s "
            f"(train.timeout): {_summary(error)}. See the output of each of them."
        ) from error
    return Ranks(rank, world_size, store, device)


def _agreed_name(store: Any, rank: int, world_size: int, timeout: float) -> str:
    """Agree with all ranks on a name of this group alone: after a restart, torchrun's store still holds the keys of the
    previous group, and its count of restarts differs between machines. Every rank posts a random name; rank 0 publishes
    the list until each rank has confirmed one with its own name. Raises RuntimeError when time is over."""

    def read(kind: str) -> list[str]:
        keys = [f"{kind}/{number}" for number in range(world_size)]
        return [store.get(key).decode() if store.check([key]) else "" for key in keys]

    own_name, deadline = secrets.token_hex(8), time.monotonic() + timeout
    store.set(f"name/{rank}", own_name)
    while time.monotonic() < deadline:
        if rank == 0:
            store.set("roster", " ".join(read("name")) if all(read("name")) else "")
        roster = store.get("roster").decode() if store.check(["roster"]) else ""
        if own_name in roster.split():
            store.set(f"confirmed/{rank}", roster)
            if rank == 0 and set(read("confirmed")) == {roster}:
                store.set("agreed", roster)
            if store.check(["agreed"]) and store.get("agreed").decode() == roster:
                return roster
        time.sleep(0.05)
    absent = [number for number, name in enumerate(read("name")) if not name]
    raise RuntimeError(f"rank {', '.join(map(str, absent)) or '?'} is missing")


def _summary(error: BaseException) -> str:
    """The first line of an error, after its type unless it is ours: the text of a KeyError is only the key."""
    line = str(error).split("\n")[0]
    return line if isinstance(error, NmtError) else f"{type(error).__name__}: {line}".removesuffix(": ")


def _is_broken_connection(error: BaseException) -> bool:
    """Return whether a collective failed because of another rank. Gloo shows it only in the error message."""
    words = ("gloo", "connection", "nccl", "timed out")
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)
    )
