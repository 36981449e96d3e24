"""What can be seen of a run from outside: which pairs moved the weights, and how an epoch is cut into updates."""

import json
import os
from pathlib import Path

from nmt.data.corpus import Prepared
from nmt.data.plan import Plan
from nmt.data.subwords import PAD
from nmt.recipe.reader import load_resolved
from nmt.training import launch as room
from nmt.training import parallel
from nmt.training.engine import Engine


class StopAt:
    """Wants to stop after a number of questions: the loop asks once an update."""

    def __init__(self, n):
        self.left = n

    def __call__(self):
        self.left -= 1
        return self.left < 0


def plan_of(recipe):
    """The plan that a run of the recipe follows."""
    train, batch = Prepared.open(recipe.data_folder).train, recipe.batch
    sizes = {"max_tokens": batch.max_tokens, "per_update": batch.per_update, "pool": batch.pool}
    return Plan(train.src_len, train.trg_len, seed=recipe.seed, **sizes)


def pairs_of(recipe):
    """Every training pair as a pair of id lists, in the order of the corpus."""
    train = Prepared.open(recipe.data_folder).train
    return [(src.tolist(), trg.tolist()) for src, trg in zip(*train.pairs(range(train.n_pair)), strict=True)]


def real(row):
    return [number for number in row.tolist() if number != PAD]


def sentences(seq, packing):
    """Those of padded rows, or of one row where they lie end to end."""
    if packing is None:
        return list(seq)
    return list(seq[0].split(packing.start.diff().tolist()))


def witness(model, seen, change=lambda sources, hidden: hidden):
    """Note in `seen` each pair whose states receive a gradient. change: of a batch's source sentences and states."""
    decode_hidden = model.decode_hidden

    def watched(src_seq, trg_seq, packing=None):
        of_src, of_trg = packing or (None, None)
        sources = sentences(src_seq, of_src)
        hidden = change(sources, decode_hidden(src_seq, trg_seq, packing))
        if hidden.requires_grad:

            def note(gradient):
                targets, moves = sentences(trg_seq, of_trg), sentences(gradient, of_trg)
                for src, trg, moved in zip(sources, targets, moves, strict=True):
                    if moved.any():
                        seen.append((real(src)[:-1], real(trg)[1:]))  # without EOS, without BOS

            hidden.register_hook(note)
        return hidden

    model.decode_hidden = watched
    return model


def without_rehearsals(backward, seen):
    """Engine.backward that forgets what was seen in a call of itself from within: its gradient moves nothing."""
    depth = 0

    def watched(engine, *args, **options):
        nonlocal depth
        depth, before = depth + 1, len(seen)
        backward(engine, *args, **options)
        depth -= 1
        if depth:
            del seen[before:]

    return watched


def train_in_legs(recipe, lengths):
    """Train for so many updates, go on for as many more as the next number says, and so on; None: to the end.

    Returns the pairs that moved the weights in each leg.
    """
    make, backward, legs = room.new_model, Engine.backward, []
    try:
        for length in lengths:
            seen = []
            legs.append(seen)
            room.new_model = lambda *args, seen=seen: witness(make(*args), seen)
            Engine.backward = without_rehearsals(backward, seen)
            room.launch(recipe, StopAt(length - 1) if length else lambda: False)
    finally:
        room.new_model, Engine.backward = make, backward
    return legs


def train_one_rank(file, seen, legs):
    """Be the rank that the environment names in a run of several legs, each a length and a port; changes the process.

    file: of the recipe. seen: the file to write the pairs of each leg to.
    """
    recipe, found = load_resolved(Path(file)), []
    join = parallel.join
    parallel.join = lambda device, timeout, _: join(device, timeout)  # `StopAt` counts updates, not looks for others
    for length, port in legs:
        os.environ["MASTER_PORT"] = str(port)  # at the old one a slow rank could meet the group that is leaving
        found += train_in_legs(recipe, [length])
    Path(seen).write_text(json.dumps(found), encoding="utf-8")
