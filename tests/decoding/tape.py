"""CUDA graphs imitated on a CPU: recorded operations with the tensors that they read and write, and no Python."""

from types import SimpleNamespace

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from nmt.decoding.fixed_search import Recorder

SYNCHRONISING = (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero, torch.ops.aten.masked_select)


class Tape(TorchDispatchMode):
    """Record the operations inside the context; `replay` repeats them on the same tensors as they are then."""

    def __init__(self) -> None:
        super().__init__()
        self._operations = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled, and disabling the compiler would be slow."""
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func.overloadpacket not in SYNCHRONISING, f"{func} asks the device for a number"
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        inputs = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves((args, kwargs)) if torch.is_tensor(leaf)}
        fresh = [torch.is_tensor(leaf) and leaf.untyped_storage().data_ptr() not in inputs for leaf in tree_leaves(out)]
        if any(fresh) or func._schema.is_mutable:  # else it is a view: nothing to replay
            # Keep the current storage: a parameter may get another one later.
            args, kwargs = tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs))
            self._operations.append((func, args, kwargs, out, fresh))
        return out

    def replay(self) -> None:
        for func, args, kwargs, out, fresh in self._operations:
            output = func(*args, **kwargs)
            if not any(fresh):
                continue
            for old, new, is_fresh in zip(tree_leaves(out), tree_leaves(output), fresh, strict=True):
                if is_fresh:
                    assert old.shape == new.shape
                    old.copy_(new)


class Taping(Recorder):
    """Record on a CPU. As on a GPU, recording executes nothing: all buffers keep their contents."""

    def __init__(self, memory) -> None:
        """memory: returns the buffers that the work reads and writes, by name."""
        super().__init__(torch.device("cuda"))  # takes the code path of a GPU; no tensor is moved
        self._buffers, self.n_recorded, self.n_replayed = memory, 0, 0

    def _record(self, work):
        before = {name: tensor.clone() for name, tensor in self._buffers().items()}
        with Tape() as tape:
            work()
        after = self._buffers()
        assert after.keys() == before.keys(), "a place was made while recording"
        for name, tensor in before.items():
            after[name].copy_(tensor)
        self.n_recorded += 1

        def replay() -> None:
            self.n_replayed += 1
            tape.replay()

        return SimpleNamespace(replay=replay)
