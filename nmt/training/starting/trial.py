"""A model that is trained for a moment to see what a batch costs. Nothing of it stays: no weight, no file."""

import gc
import time

import numpy as np
import torch
from torch.autograd.graph import saved_tensors_hooks

from nmt.data.batching.batches import Batch, make_batch
from nmt.data.batching.plan import Plan
from nmt.data.stored.corpus import Prepared
from nmt.data.vocabulary.subwords import BOS, EOS, N_SPECIAL
from nmt.errors import OutOfMemory, is_out_of_memory
from nmt.models.base import TranslationModel
from nmt.recipe.options import Recipe
from nmt.training.engine import Engine
from nmt.training.out_of_memory import Memory, Work
from nmt.training.parallel import Ranks
from nmt.training.precision import Precision

_SAMPLE = 20_000  # pairs that stand for the corpus
_TINY_RATE = 1e-9  # of learning: the weights are of no interest


class Trial:
    """One process that tries batches on a model of the recipe."""

    def __init__(self, recipe: Recipe, data: Prepared, model: TranslationModel, precision: Precision) -> None:
        self.recipe, self.data, self.device = recipe, data, model.device
        first_tag = data.subwords.src.n_text
        self.engine = Engine(model.train(), recipe, precision=precision, ranks=Ranks(), first_tag=first_tag)
        self.longest_side = 1 + int(max(data.train.src_len.max(), data.train.trg_len.max()))

    def longest(self, max_tokens: int) -> Work:
        """The batch of that many tokens that needs most memory: both sides as long as the longest pair, no padding."""
        n = max(1, max_tokens // self.longest_side)
        length = max(self.longest_side, max_tokens // n)
        rng = np.random.default_rng(0)
        src, trg = self.data.subwords.src, self.data.subwords.trg
        src_seq, gold = (torch.from_numpy(rng.integers(N_SPECIAL, s.size, (n, length))) for s in (src, trg))
        src_seq[:, -1] = gold[:, -1] = EOS
        trg_seq = torch.cat([torch.full((n, 1), BOS), gold[:, :-1]], dim=1)
        return Work(Batch(src_seq, trg_seq, gold, gold.numel()), True, 0)

    def typical(self, max_tokens: int) -> list[Work]:
        """Three batches of the corpus at most: of short, of usual and of long sentences."""
        corpus = self.data.train
        some = np.random.default_rng(0).choice(corpus.n_pair, min(_SAMPLE, corpus.n_pair), replace=False)
        lengths = corpus.src_len[some], corpus.trg_len[some]
        plan = Plan(*lengths, seed=0, max_tokens=max_tokens, per_update=1, pool=len(some))
        found = sorted((rows for (rows,) in plan.updates(0)), key=lambda rows: int(plan.lengths(rows)[1].max()))
        picked = dict.fromkeys(len(found) * sixth // 6 for sixth in (1, 3, 5))
        return [Work(make_batch(*corpus.picked(some[found[i]]), plan.padded), True, i) for i in picked]

    def seconds(self, work: list[Work]) -> float:
        """How long an update of these batches takes, to its very end."""
        begin = time.perf_counter()
        # At the end of the run, when all that takes memory is on.
        self.engine.backward(work, sum(item.batch.n_gold for item in work), share=1.0)
        self.engine.step(_TINY_RATE, 1)
        self.engine.settle()
        return time.perf_counter() - begin

    def speed(self, max_tokens: int) -> tuple[float, float]:
        """Target tokens a second in typical batches of that size, and the seconds that one of them took."""
        work = self.typical(max_tokens)
        seconds = [min(self.seconds([item]) for _ in range(2)) for item in work]
        return sum(item.batch.n_gold for item in work) / sum(seconds), max(seconds)

    def fits(self, work: Work) -> bool:
        """Whether memory holds an update of this batch."""
        self.engine.memory = Memory()
        try:
            self.seconds([work])
            return self.engine.memory.n_failed == 0
        except OutOfMemory:
            return False
        except (RuntimeError, MemoryError) as error:  # in the step, whose moments are made now
            if not is_out_of_memory(error):
                raise
            return False
        finally:
            self.engine.optimizers.zero_grad()

    def held_bytes(self, work: Work) -> int:
        """What the forward pass of a batch leaves for its backward pass, in bytes."""
        kept: dict[int, int] = {}

        def note(tensor: torch.Tensor) -> torch.Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        batch = work.batch.to(self.device)
        with saved_tensors_hooks(note, lambda tensor: tensor), self.engine.precision.autocast():
            loss, _ = self.engine.objective(
                batch.src_seq, batch.trg_seq, batch.gold, n_gold=batch.n_gold, share=1.0, layer_seed=0
            )
        for parameter in self.engine.model.parameters():
            kept.pop(parameter.untyped_storage().data_ptr(), None)
        del loss
        return sum(kept.values())

    def end(self) -> None:
        """Give the memory back."""
        del self.engine
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
