"""Distributed training: DDP or FSDP, collectives, and this rank's share of the work. One process is world size 1.
`torchrun` starts the processes, sets the environment, and ends the others when one fails."""

import contextlib
import importlib
import inspect
import itertools
import json
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nmt import ops
from nmt.errors import MachineError, NmtError, RunError
from nmt.processes import ADDRESS, place_of

T = TypeVar("T")


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


def is_cut(tensor: Tensor) -> bool:
    """Return whether a tensor is sharded over the ranks."""
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


def checksum(tensors: list[Tensor]) -> int:
    """A number that follows from the bits of this rank's part of some tensors, wherever they lie."""
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    sums = [local(t).detach().contiguous().view(integers[t.element_size()]).sum(dtype=torch.int64) for t in tensors]
    total = 0
    for number in torch.stack(sums).tolist():
        total = (total * 1_000_003 + number) % (1 << 62)  # the order counts
    return total


def total_norm(grads: list[Tensor]) -> Tensor:
    """The norm of all gradients as one vector, the same on every rank, 0-dim."""
    parts = [local(grad) for grad in grads]
    norm = ops.total_norm(parts)
    if not any(map(is_cut, grads)):
        return norm
    square = norm.double().square()
    dist.all_reduce(square)
    return square.sqrt().to(norm.dtype)


@dataclass(frozen=True)
class Ranks:
    """This process (rank) among all (world_size). store: keys and values that all see, where there are several."""

    rank: int = 0
    world_size: int = 1
    store: Any = None  # torch's stores have no type hints
    _n_wait: Iterator[int] = field(default_factory=itertools.count)

    @property
    def is_main(self) -> bool:
        """Return whether this process writes and talks."""
        return self.rank == 0

    def share(self, batches: list[T]) -> list[tuple[T, bool]]:
        """This rank's batches of an update, and whether each counts. Batch i goes to rank i mod world_size. Every rank
        gets equally many, since gradients are exchanged after the last: where batches run out a rank repeats one that
        does not count."""
        n_turn = -(-len(batches) // self.world_size)
        mine = [turn * self.world_size + self.rank for turn in range(n_turn)]
        return [(batches[i], True) if i < len(batches) else (batches[0], False) for i in mine]

    def gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Whole tensors on rank 0, {} elsewhere. All ranks must ask together. What was cut is put together one tensor
        at a time and kept in the memory of the host: no device holds it all."""
        found: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            entire = whole(tensor.detach())
            if self.is_main:
                found[name] = entire.cpu() if is_cut(tensor) else entire
        return found

    def outliers(self, number: int) -> list[str]:
        """Ranks whose number is not that of most."""
        found = self.of_each(number)
        usual = Counter(found).most_common(1)[0][0]
        return [f"rank {rank}" for rank, other in enumerate(found) if other != usual]

    def add_up(self, numbers: Tensor) -> Tensor:
        """Add up a tensor over all ranks, where it is; a GPU does so while this process goes on."""
        if self.world_size > 1:
            dist.all_reduce(numbers)
        return numbers

    def any(self, value: bool) -> bool:
        """Return whether it is true on any rank, so that all ranks stop at the same update."""
        return any(self.of_each(value))

    def of_each(self, number: int) -> list[int]:
        """The whole numbers of all ranks."""
        if self.world_size == 1:
            return [number]
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        numbers = torch.zeros(self.world_size, dtype=torch.int64, device=device)
        numbers[self.rank] = number
        return [int(found) for found in self.add_up(numbers).tolist()]

    def distribute(self, module: nn.Module, device: torch.device, parallel: str) -> nn.Module:
        """Wrap a module so that its backward pass averages gradients over the ranks. parallel: ddp, or fsdp, which
        replaces its parameters."""
        if self.world_size == 1:
            return module
        if parallel == "fsdp":
            return _shard(module, device)
        ddp, ids = nn.parallel.DistributedDataParallel, [device.index] if device.type == "cuda" else None
        # Buffers are tables of positions, the same everywhere, which each rank lengthens when it has to. torch 2.13
        # warns of the name of this option that torch 2.11 knows alone.
        names = ("forward_sync_buffers", "broadcast_buffers")
        sync = next(name for name in names if name in inspect.signature(ddp).parameters)
        return ddp(module, device_ids=ids, gradient_as_bucket_view=True, **cast(Any, {sync: False}))

    def exchange(self, module: nn.Module, *, now: bool) -> AbstractContextManager[None]:
        """Context manager of a backward pass: gradients are exchanged in the last one of an update only."""
        if self.world_size == 1:
            return nullcontext()
        if isinstance(module, nn.parallel.DistributedDataParallel):
            return nullcontext() if now else module.no_sync()
        cast(Any, module).set_requires_gradient_sync(now)
        return nullcontext()

    def of_main(self, work: Callable[[], T]) -> T:
        """Return what rank 0's work returns, which JSON must hold; the others wait for it however long it takes."""
        if self.store is None:
            return work()
        key = f"of_main/{next(self._n_wait)}"
        if self.is_main:
            found = work()
            self.store.set(key, json.dumps(found))
            return found
        while not self.store.check([key]):
            self._raise_failure()
            time.sleep(0.05)
        return cast(T, json.loads(self.store.get(key)))

    @contextmanager
    def together(self) -> Iterator[None]:
        """The life of the group. The error of a rank is told to all; a lost connection is a MachineError."""
        if self.store is None:
            yield
            return
        try:
            yield
            self.any(False)  # the store may end with rank 0
        except BaseException as error:
            if _is_broken_connection(error):
                self._raise_failure()
                raise MachineError(
                    f"rank {self.rank} lost another rank, which is dead, frozen or stuck for longer than train.timeout "
                    f"({_in_short(error)}). What the others printed, or the system log of their machines, may say why. "
                    "The same command goes on from the last checkpoint."
                ) from None
            code = error.exit_code if isinstance(error, NmtError) else MachineError.exit_code
            who = f"rank {self.rank} (process {os.getpid()} on {socket.gethostname()})"
            with contextlib.suppress(RuntimeError):
                self.store.set("failed", json.dumps([f"{who} stopped with an error: {_in_short(error)}", code]))
            raise
        dist.destroy_process_group()

    def _raise_failure(self) -> None:
        """Raise the error that another rank ended with, if one did."""
        with contextlib.suppress(RuntimeError):
            if self.store.check(["failed"]):
                why, code = json.loads(self.store.get("failed"))
                raise (NmtError if code == NmtError.exit_code else MachineError)(why)


def join(device: torch.device, timeout: float) -> tuple[Ranks, torch.device]:
    """Join the group that torchrun describes in the environment; alone without one. Returns this rank's device.
    timeout: seconds. Raises MachineError where a rank does not come, NmtError for what torchrun would not leave."""
    rank, world_size, local_rank = place_of(needed=ADDRESS)
    if world_size == 1:
        return Ranks(), device
    importlib.import_module("torch._dynamo")  # as ddp and fsdp would later, when others wait for this rank
    if device.type == "cuda":
        if local_rank >= (n_gpu := torch.cuda.device_count()):
            raise MachineError(
                f"rank {rank} is process {local_rank + 1} on this machine, which has {n_gpu} GPUs, and each process "
                f"needs one of its own: start torchrun with --nproc-per-node {n_gpu}."
            )
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    patience, backend = timedelta(seconds=timeout), "nccl" if device.type == "cuda" else "gloo"
    try:
        store, _, _ = next(cast(Any, dist).rendezvous("env://", timeout=patience))
        store = cast(Any, dist).PrefixStore(_agreed_name(store, rank, world_size, timeout), store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=patience)
    except RuntimeError as error:
        where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise MachineError(
            f"rank {rank} did not meet the {world_size - 1} others at {where} within {timeout:g} s (train.timeout): "
            f"{_in_short(error)}. Look at what each of them printed."
        ) from error
    return Ranks(rank, world_size, store), device


def _agreed_name(store: Any, rank: int, world_size: int, timeout: float) -> str:
    """Wait for all ranks. Returns a name of this group alone: after a restart torchrun's store has the keys of before,
    and its count of restarts is another one on each machine.

    Rank 0 writes down what each rank calls itself, until each has confirmed a list with its own name in it.
    """

    def read(kind: str) -> list[str]:
        keys = [f"{kind}/{number}" for number in range(world_size)]
        return [store.get(key).decode() if store.check([key]) else "" for key in keys]

    mine, deadline = secrets.token_hex(8), time.monotonic() + timeout
    store.set(f"name/{rank}", mine)
    while time.monotonic() < deadline:
        if rank == 0:
            store.set("roster", " ".join(read("name")) if all(read("name")) else "")
        roster = store.get("roster").decode() if store.check(["roster"]) else ""
        if mine in roster.split():
            store.set(f"confirmed/{rank}", roster)
            if rank == 0 and set(read("confirmed")) == {roster}:
                store.set("agreed", roster)
            if store.check(["agreed"]) and store.get("agreed").decode() == roster:
                return roster
        time.sleep(0.05)
    absent = [number for number, name in enumerate(read("name")) if not name]
    raise RuntimeError(f"missing is rank {', '.join(map(str, absent)) or '?'}")


def refuse_many(flag: str) -> None:
    """Raise where torchrun started several processes for what one of them does."""
    if place_of().world_size > 1:
        raise RunError(f"{flag} is for one process: start it without torchrun.")


def _in_short(error: BaseException) -> str:
    """The first line of an error. Only those of our own say enough without their type: a KeyError is but its key."""
    line = str(error).split("\n")[0]
    return line if isinstance(error, NmtError) else f"{type(error).__name__}: {line}".removesuffix(": ")


def _is_broken_connection(error: BaseException) -> bool:
    """Return whether a collective failed because of another rank. Gloo says so in words only."""
    words = ("gloo", "connection", "nccl", "timed out")
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)
    )
