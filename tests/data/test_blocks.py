"""Work in blocks: whatever a block, a helper or a fast path does, the answer is that of pair after pair."""

import hashlib
import json
import random

import numpy as np
import pytest

from nmt.data import blocks, keep
from nmt.data.blocks import blocks_of
from nmt.data.clean import filters_of, most_bytes, reason_to_drop
from nmt.data.fields import Reading
from nmt.data.filter_block import KEPT, REASON_OF, codes_of, conditions_of
from nmt.data.learn import WordsOf, learnt_from
from nmt.data.letters import in_words, words_of_easy
from nmt.data.lines import lines_of_block, read_lines
from nmt.data.measure import aligned_by
from nmt.data.placeholders import names_of, protected
from nmt.data.prepare import prepare
from nmt.data.ratio import UsualRatio
from nmt.data.report_text import Block
from nmt.data.sources import Source, Text
from nmt.data.subwords import Subwords
from nmt.data.units import Units, gathered
from nmt.recipe.filter_options import FilterConfig
from nmt.recipe.subword_options import SubwordsConfig
from tests.data.awkward import AWKWARD
from tests.data.test_prepare import SRC, TRG, recipe_in

PARTS = [
    *AWKWARD,
    *[
        "a",
        "b",
        "été,",
        "12",
        "345",
        "...",
        "--",
        "....",
        "«Ça»",
        "<b>",
        "\t",
        "\xa0",
        "\u3000",
        "�",
        "\x00",
        "\x1b",
        "fÃ¼r",
        "donâ€™t",
        "Ð¿Ñ€Ð¸",
        "Wort",
        "слово",
        "日本",
        "語",
        "½",
        "ﬁ",
        "K",
    ],
    "ha" * 30,
    "nein " * 14,
    "x" * 150,
    "http://www.слово.ru/пример",
    "a long sentence of plain words",
    "e\u0301 \u0301",
    "  ",
    "",
]
LINES = [line for line in PARTS if "\n" not in line]


def nasty(seed, n=400):
    rng = random.Random(seed)
    return [rng.choice(["", " "]).join(rng.choices(LINES, k=rng.randint(0, 9))) for _ in range(n)]


def sides(seed):
    src, trg = nasty(seed), nasty(seed + 1)
    src[::7], src[1::7] = trg[::7], [f" {line}  " for line in trg[1::7]]
    return src, trg


def units(lines, normalize="nfc"):
    return Units(lines, normalize)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("languages", [("en", "fr"), ("ru", "ja"), ("xx", "de")])
def test_a_block_is_filtered_as_its_pairs_are(seed, languages):
    src, trg = sides(seed)
    usual = UsualRatio(1.0, 0.6, 1.6)
    for options in ({}, {"max_ratio_spread": 2.0, "max_symbols": 0.4, "max_repeats": 3, "min_script": 0.6}):
        config = FilterConfig(**options)
        filters = filters_of(config, 5, languages, usual)
        before = np.zeros(len(src), np.uint8)
        conditions = conditions_of(config, 5, languages, usual)
        codes = codes_of(units(src), units(trg), filters, conditions, before)
        expected = [reason_to_drop(a, b, filters) for a, b in zip(src, trg, strict=True)]
        assert [None if code == KEPT else REASON_OF[code] for code in codes.tolist()] == expected
        assert len(set(expected)) > 5, "what is compared is worth comparing"


@pytest.mark.parametrize("seed", range(3))
def test_units_put_together_are_the_lines(seed):
    lines = nasty(seed)
    of = units(lines)
    rows = np.split(of.at, np.cumsum(of.n_unit)[:-1])
    assert ["".join(of.units[n] for n in row)[1:] for row in rows] == lines
    assert of.n_char.tolist() == list(map(len, lines))
    assert of.n_byte.tolist() == [len(line.encode()) for line in lines]
    assert of.n_word().tolist() == [len(line.split()) for line in lines]


@pytest.mark.parametrize("normalize", ["nfc", "nfkc", "none"])
@pytest.mark.parametrize("symbols", [(), ("<b>", "12")])
@pytest.mark.parametrize("kinds", [(), ("number", "tag", "url")])
def test_units_are_encoded_and_learnt_from_as_their_lines_are(normalize, symbols, kinds):
    lines = [protected(line, kinds)[0] for line in nasty(7, 200)]
    assert any("\ud800" <= letter <= "\udbff" for line in lines for letter in line) == bool(kinds)
    config = SubwordsConfig(vocab_size=500, normalize=normalize, symbols=symbols)
    subwords = Subwords.train(lambda: lines, lambda: lines[:50], config, 0, placeholders=names_of(kinds))
    of = units(lines, normalize)
    found = subwords.src.encode_units(of.units)
    rows = np.split(of.at, np.cumsum(of.n_unit)[:-1])
    assert [[i for n in row for i in found[n]] for row in rows] == subwords.src.encode(lines)
    counted = WordsOf(config)(zip(of.units, of.counts(np.ones(len(lines), bool)).tolist(), strict=True), {})
    plain = [word for text in learnt_from([lambda: lines], config, 0) for word, _ in in_words().pre_tokenize_str(text)]
    assert counted == {word: plain.count(word) for word in set(plain)}


def test_words_to_align_by_are_those_of_whole_lines():
    lines = nasty(3)
    of = units(lines)
    hashed, unit = of.different.words()
    n_of = np.bincount(unit, minlength=len(of.units))
    words, n = gathered(hashed, n_of, of.at)
    line = np.repeat(np.repeat(np.arange(len(lines)), of.n_unit), n)
    whole = Block(lines).words()
    assert sorted(zip(line.tolist(), words.tolist(), strict=True)) == sorted(
        zip(whole[1].tolist(), whole[0].tolist(), strict=True)
    )


def test_marks_are_those_of_whole_lines():
    lines = nasty(5)
    told, counts = aligned_by(units(lines))
    assert told["marks"].tolist() == Block(lines).marks().tolist()
    assert counts.tolist() == np.bincount(Block(lines).words()[0], minlength=1 << 16).tolist()


def test_lines_that_are_near_have_the_same_bag():
    lines = [*nasty(4), *(f"{a}hapter {n}{b} the longest title" for a in "cC" for b in ".:" for n in (1, 23))]
    near, numberless, *_ = Block(lines).near()
    bags = units(lines).sums(units(lines).different.bags())
    assert bags.tolist() == Block(lines).bags().tolist()
    for hashes in (near, numberless):
        bag_of = {}
        for key, bag in zip(hashes.tolist(), bags.tolist(), strict=True):
            assert bag_of.setdefault(key, bag) == bag
    assert len(set(numberless.tolist())) < len(set(near.tolist())) < len(set(lines))


@pytest.mark.parametrize("most_bytes_of_block", [50, 1 << 22])
def test_files_are_cut_at_the_same_lines_of_both_sides(tmp_path, monkeypatch, most_bytes_of_block):
    monkeypatch.setattr(blocks, "N_PAIR", 7)
    monkeypatch.setattr(blocks, "_CHUNK", 64)
    monkeypatch.setattr(blocks, "_MOST_BYTES", most_bytes_of_block)
    longest = most_bytes(1) + 8
    raw = {"src": b"\xef\xbb\xbf", "trg": b""}
    for seed, name in enumerate(raw):
        raw[name] += b"\n".join(line.encode() for line in [*nasty(seed, 60), "y" * 500 + "é", "end\r"])
        (tmp_path / name).write_bytes(raw[name])
    source = Source("train", *(Text(name, tmp_path / name) for name in raw))
    reading = Reading("refuse", "refuse", longest)
    found = {"src": [], "trg": []}
    for block in blocks_of(source, reading):
        for name, lines in found.items():
            assert block["first"] == len(lines) + 1
            lines += lines_of_block(
                block[f"{name}_raw"], name, block["first"], bad_utf8="refuse", longest=longest, notes=reading.notes
            )
            assert len(lines) == block["first"] - 1 + block["n_pair"] and block["n_pair"] <= 7
    for name, lines in found.items():
        assert lines == list(read_lines(tmp_path / name, longest=longest))


@pytest.mark.parametrize("protect", [[], ["number", "tag", "url"]])
def test_the_bytes_do_not_depend_on_who_does_the_work(tmp_path, monkeypatch, protect):
    monkeypatch.setattr(blocks, "N_PAIR", 40)
    monkeypatch.setattr(keep, "_WORTHWHILE", 1)
    told = {}
    for n_worker in (1, 2):
        rng = random.Random(1)
        src, trg = [*SRC, *nasty(1, 60)], [*TRG, *nasty(2, 60)]
        src, trg = ([side[n] for n in [rng.randrange(len(src)) for _ in range(300)]] for side in (src, trg))
        src += ["um 7 Uhr <b>eins</b>", "Zug 12,  (345)"]
        trg += ["<b>one</b> at 7 o'clock", "train (345) 12"]
        folder = tmp_path / str(n_worker)
        folder.mkdir()
        options = {"drop_near_duplicates": True, "max_translations": 3, "max_len": 90, "protect": protect}
        prepare(recipe_in(folder, src, trg, workers=n_worker, **options), folder / "out")
        files = ("train.arrow", "valid.arrow", "subwords.json")
        told[n_worker] = [hashlib.sha256((folder / "out" / name).read_bytes()).digest() for name in files]
        told[n_worker].append((folder / "out" / "report.json").read_text().replace(str(folder), ""))
        notes = json.loads(told[n_worker][-1])["notes"]
        assert bool(notes.get("protected") and notes.get("unlike_items")) == bool(protect)
    assert told[1] == told[2]


def test_easy_words_are_cut_as_all_others():
    rng = random.Random(1)
    letters = "aZ9é ÿ'ß×÷.!~\x7f\u0100s_ÀdreveTmll½ªµ\u00a0"
    units_ = [" " + "".join(rng.choices(letters, k=rng.randint(1, 8))) for _ in range(3000)]
    units_ += [f" {a}'{b}" for a in ("I", "é", "9", "") for b in ("s", "S", "ll", "re x", "des", "'t")]
    easy = {unit: found for unit in units_ if (found := words_of_easy(unit)) is not None}
    assert len(easy) > 300
    for unit, found in easy.items():
        assert found == [word for word, _ in in_words().pre_tokenize_str(unit)]
