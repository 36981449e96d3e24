"""A recording as a GPU makes it, on a CPU: kernels with the tensors that they read and write, and no Python."""

from types import SimpleNamespace

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from nmt.decoding.fixed_search import Recorder

ASKING = (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero, torch.ops.aten.masked_select)


class Tape(TorchDispatchMode):
    """What happens inside is noted; `replay` does it again, on the same tensors, whatever they hold by then."""

    def __init__(self) -> None:
        super().__init__()
        self._notes = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled, and keeping the compiler out takes longer than all else."""
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func.overloadpacket not in ASKING, f"{func} asks the device for a number"
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        known = {one.untyped_storage().data_ptr() for one in tree_leaves((args, kwargs)) if torch.is_tensor(one)}
        made = [torch.is_tensor(one) and one.untyped_storage().data_ptr() not in known for one in tree_leaves(out)]
        if any(made) or func._schema.is_mutable:  # else it is a view, with nothing to do again
            # Where they lie now: what a parameter is given later is not there.
            args, kwargs = tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs))
            self._notes.append((func, args, kwargs, out, made))
        return out

    def replay(self) -> None:
        for func, args, kwargs, out, made in self._notes:
            again = func(*args, **kwargs)
            if not any(made):
                continue
            for old, new, is_made in zip(tree_leaves(out), tree_leaves(again), made, strict=True):
                if is_made:
                    assert old.shape == new.shape
                    old.copy_(new)


class Taping(Recorder):
    """Records on a CPU. As there, what is recorded is not done: all places hold afterwards what they held before."""

    def __init__(self, memory) -> None:
        """memory: gives the places that work reads and writes, by name."""
        super().__init__(torch.device("cuda"))  # so that it does what it does there; no tensor goes there
        self._places, self.n_recorded, self.n_replayed = memory, 0, 0

    def _record(self, work):
        before = {name: tensor.clone() for name, tensor in self._places().items()}
        with Tape() as tape:
            work()
        after = self._places()
        assert after.keys() == before.keys(), "a place was made while recording"
        for name, tensor in before.items():
            after[name].copy_(tensor)
        self.n_recorded += 1

        def replay() -> None:
            self.n_replayed += 1
            tape.replay()

        return SimpleNamespace(replay=replay)
