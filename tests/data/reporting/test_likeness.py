"""What goes with what is learnt from a file itself: enough to find misaligned lines where nothing else tells them."""

import json
import random

import pytest

from nmt.data.alignment_shift import find_shifts, records_of
from nmt.data.prepare import prepare
from nmt.data.text import Anchors, Block
from nmt.recipe.options import Recipe

N = 1500
WORDS = {f"{a}{b}{a}{b}": f"{b.upper()}o{a}u" for a in "klmnprst" for b in "aeiou"}


def corpus(n=N, seed=1):
    """Six words a line, which a dictionary translates in another order: all lines are equally long."""
    draw = random.Random(seed)
    src = [draw.choices(list(WORDS), k=6) for _ in range(n)]
    trg = [draw.sample([WORDS[word] for word in line], 6) for line in src]
    return [" ".join(line) for line in src], [" ".join(line) for line in trg]


def aligned(src, trg, folder):
    path = folder / "records"
    path.write_bytes(records_of(Block(src), Block(trg), Anchors()).tobytes())
    return find_shifts(path, 0, len(src))


def test_words_that_nobody_translated_tell_where_lines_are_shifted(tmp_path):
    src, trg = corpus()
    assert aligned(src, trg, tmp_path).stretches == ()
    trg.insert(700, trg[7])
    del trg[1100]
    (found,) = aligned(src, trg, tmp_path).stretches
    assert found.offset == 1 and abs(found.first - 701) <= 4 and abs(found.last - 1100) <= 4


def test_a_shift_right_after_the_beginning_is_found_though_all_was_learnt_behind_it(tmp_path):
    src, trg = corpus()
    trg.insert(100, trg[7])
    (found,) = aligned(src, trg[:-1], tmp_path).stretches
    assert found.offset == 1 and abs(found.first - 101) <= 4 and found.last == N


def test_chance_is_not_learnt(tmp_path):
    src, trg = corpus()
    random.Random(2).shuffle(trg)
    found = aligned(src, trg, tmp_path)
    assert not found.can_be_judged and abs(found.strength) < 0.02


def mixed(*, in_order):
    """Lines of any length, and among them 400 of one word of their own, of equal numbers of it or not."""
    draw, sides = random.Random(3), ([], [])
    for n in range(2800):
        other = 1200 <= n < 1600
        words = draw.choices(list(WORDS), k=draw.randint(2, 12))
        sides[0].append(" ".join("zzz" if other else word for word in words))
        sides[1].append(" ".join("QQQ" if other else WORDS[word] for word in words))
    if not in_order:
        sides[1][1200:1600] = draw.sample(sides[1][1200:1600], 400)
    return sides


def test_lines_of_another_kind_raise_no_alarm_while_they_go_together(tmp_path):
    assert aligned(*mixed(in_order=True), tmp_path).stretches == ()
    (found,) = aligned(*mixed(in_order=False), tmp_path).stretches
    assert found.offset is None and abs(found.first - 1201) <= 12 and abs(found.last - 1600) <= 12


def test_lines_beside_empty_ones_go_with_none_but_empty_ones_go_together(tmp_path):
    src, trg = mixed(in_order=True)
    trg[1700:2100] = [""] * 400
    (found,) = aligned(src, trg, tmp_path).stretches
    assert found.offset is None and abs(found.first - 1701) <= 12 and abs(found.last - 2100) <= 12
    src[1700:2100] = [""] * 400
    assert aligned(src, trg, tmp_path).stretches == ()


@pytest.mark.parametrize("header", [False, True])
def test_the_report_counts_a_line_of_names_at_the_top(tmp_path, header):
    src, trg = corpus()
    trg.insert(700, trg[7])

    def tsv(name, lines):
        top = ["de\ten"] if header else []
        (tmp_path / name).write_text("".join(f"{line}\n" for line in [*top, *lines]), encoding="utf-8")
        return {"file": str(tmp_path / name), "src_column": 1, "trg_column": 2, "header": header}

    pairs = [f"{a}\t{b}" for a, b in zip(src, trg, strict=False)]
    data = {"train": tsv("t.tsv", pairs), "valid": tsv("v.tsv", pairs[3:4]), "alarms": "warn", "workers": 1}
    recipe = Recipe.model_validate({"name": "t", "data": data, "subwords": {"vocab_size": 300}})
    said: list[str] = []
    prepare(recipe, tmp_path / "out", talk=said.append)
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    (stretch,) = next(one for one in report["alignment"] if one["split"] == "train")["stretches"]
    assert abs(stretch["first"] - 701 - header) <= 4 and stretch["last"] == N + header
    assert report["leaks"]["examples"][0]["place"] == f"{tmp_path / 'v.tsv'}:{1 + header}"
    assert report["leaks"]["examples"][0]["train_place"] == f"{tmp_path / 't.tsv'}:{4 + header}"
    (told,) = (line for line in said if "ALARM: misaligned lines" in line)
    assert "to the end, line n of" in told and "goes with line n+1 of" in told
