"""Feed: batches of the shapes that the plan counted with, and every pair once an epoch."""

from collections import Counter
from itertools import islice

from witness import plan_of, stop_at

from nmt.data.corpus import Prepared
from nmt.data.plan import Position
from nmt.data.prepare import prepare
from nmt.data.subwords import EOS, PAD
from nmt.recipe.options import Recipe
from nmt.training.engine import Engine
from nmt.training.feed import Feed
from nmt.training.launch import launch
from nmt.training.parallel import Ranks


def test_batches_are_as_wide_as_planned(tmp_path):
    """Lines have 33 to 120 characters, each a subword, so that lengths are padded to multiples of 2 and of 4."""
    lines = [f"{'ab ' * n}{number}\n" for n in range(10, 40) for number in range(8)]
    for side, end in (("de", "!"), ("en", ".")):
        (tmp_path / f"pairs.{side}").write_text("".join(lines).replace("\n", f"{end}\n"), "utf-8", newline="\n")
    pairs = {"src": str(tmp_path / "pairs.de"), "trg": str(tmp_path / "pairs.en")}
    data = {"out": str(tmp_path / "data"), "src_lang": "de", "trg_lang": "en", "alarms": "warn"}
    data |= {"train": pairs, "valid": pairs}
    recipe = Recipe(name="wide", data=data, subwords={"kind": "char"}, batch={"max_tokens": 600})
    prepare(recipe, recipe.data_folder)
    feed, n_added = Feed(recipe, Prepared.open(recipe.data_folder), Ranks()), set()
    for portion in islice(feed.begin(Position()), feed.plan.n_update(0)):
        for item in portion.work:
            src, trg, gold = item.batch.src_seq, item.batch.trg_seq, item.batch.gold
            n_src, n_trg = (int((seq != PAD).sum(1).max()) for seq in (src, gold))
            assert (src.size(1), gold.size(1)) == (feed.plan.padded(n_src), feed.plan.padded(n_trg))
            assert gold.shape == trg.shape and src.size(0) * max(src.size(1), trg.size(1)) <= 600
            n_added.add(src.size(1) - n_src)
    assert {0, 1} <= n_added  # some were padded beyond their longest, some not


def test_noisy_pairs_are_the_same_on_any_number_of_ranks_with_little_padding(recipe_of):
    batch = {"max_tokens": 120, "per_update": 4}
    recipe = recipe_of(batch=batch, regularize={"noise": {"upper": 0.3, "typo": 0.2}})
    data = Prepared.open(recipe.data_folder)
    clean = Feed(recipe_of(batch=batch), data, Ranks())

    def updates_of(world_size):
        feeds = [Feed(recipe, data, Ranks(rank, world_size)) for rank in range(world_size)]
        of_ranks = [list(islice(feed.begin(Position()), 3)) for feed in feeds]
        for portions in zip(*of_ranks, strict=True):
            assert len({len(portion.work) for portion in portions}) == 1
        return [[item for portion in portions for item in portion.work] for portions in zip(*of_ranks, strict=True)]

    def pairs(update):
        rows = [row for item in update if item.counts for row in item.batch.src_seq.tolist()]
        return sorted(tuple(i for i in row if i != PAD) for row in rows)

    one, two = updates_of(1), updates_of(2)
    assert list(map(pairs, one)) == list(map(pairs, two))
    seeds = [{item.seed for item in update if item.counts} for update in one]
    assert seeds == [{item.seed for item in update if item.counts} for update in two]
    clean_items = [item for portion in islice(clean.begin(Position()), 3) for item in portion.work]
    widest = [max(item.batch.src_seq.size(1) for item in update) for update in one]
    assert max(widest) > max(item.batch.src_seq.size(1) for item in clean_items)  # some grew
    n_slot = sum(item.batch.src_seq.numel() for update in one for item in update)
    n_token = sum(int((item.batch.src_seq != PAD).sum()) for update in one for item in update)
    assert n_token > 0.8 * n_slot


def test_every_pair_is_trained_once_an_epoch_despite_stops(recipe_of, monkeypatch):
    valid = {"every": 10_000, "translate": False, "metric": "loss"}
    options = {"batch": {"max_tokens": 240, "per_update": 3, "pool": 70}, "valid": valid}
    n_first, n_second = (plan_of(recipe_of(**options)).n_update(epoch) for epoch in (0, 1))
    recipe = recipe_of(train={"updates": n_first + n_second}, **options)
    train = Prepared.open(recipe.data_folder).train
    expected = Counter(
        str((src.tolist(), trg.tolist())) for src, trg in zip(*train.pairs(range(train.n_pair)), strict=True)
    )
    backward_of, seen = Engine._backward_of, Counter()

    def record_pairs(engine, item, *rest):
        for src, gold in zip(item.batch.src_seq.tolist(), item.batch.gold.tolist(), strict=True):
            seen[str(tuple([i for i in row if i not in (PAD, EOS)] for row in (src, gold)))] += item.counts
        return backward_of(engine, item, *rest)

    monkeypatch.setattr(Engine, "_backward_of", record_pairs)
    assert launch(recipe, stop_at(2)) == "stopped" and seen < expected
    assert launch(recipe, stop_at(n_first - 4)) == "stopped" and seen == expected
    assert launch(recipe) == "done" and seen == expected + expected
