"""Work in blocks, by several workers and on fast paths: results equal those of one line at a time."""

import hashlib
import json
import random
from collections import Counter

import numpy as np
import pytest

from nmt.data import block_work, keep, survey
from nmt.data import units as units_module
from nmt.data.arrays import Ragged
from nmt.data.letters import WordsOf, in_words, normalised
from nmt.data.placeholders import BYTES, protected
from nmt.data.prepare import prepare
from nmt.data.text import N_ANCHOR, NO_ANCHOR, Block, anchors_of
from nmt.data.units import Lexicon, UnitFacts, UnitIds, Units, UnitWords
from nmt.recipe.data_options import SubwordsConfig
from tests.data.awkward import AWKWARD
from tests.data.test_prepare import SRC, TRG, recipe_in
from tests.disk import full_disk
from tests.learnt import learnt_subwords

PARTS = [
    *AWKWARD,
    "a", "b", "été,", "12", "345", "...", "--", "....", "«Ça»", "<b>", "\t", "\xa0", "\u3000", "\u200b", "\u00ad",
    "\u200c", "می‌خ", "\u00a8", "�", "\x00", "\x1b", "fÃ¼r", "donâ€™t", "Ð¿Ñ€Ð¸", "Wort", "слово", "日本", "語", "½",
    "ﬁ", "K", "ha" * 30, "nein " * 14, "x" * 150, "http://www.слово.ru/пример", "a long sentence of plain words",
    "e\u0301 \u0301", "  ", "",
]  # fmt: skip
LINES = [line for line in PARTS if "\n" not in line]


def odd_lines(seed, n=400):
    rng = random.Random(seed)
    return [rng.choice(["", " "]).join(rng.choices(LINES, k=rng.randint(0, 9))) for _ in range(n)]


def units_of(lines):
    return Units("".join(f"{line}\n" for line in lines).encode(**BYTES), lexicon())


def lexicon():
    """Lexicon that knows other lines already."""
    known = Lexicon()
    Units("".join(f"{line}\n" for line in odd_lines(99, 50)).encode(), known)
    known.part(UnitFacts)
    return known


def texts_of(units):
    return [" " + key[:-1].decode(**BYTES) for key in units.keys]


@pytest.mark.parametrize("seed", range(3))
def test_joined_units_equal_the_lines(seed):
    lines = odd_lines(seed)
    units = units_of(lines)
    texts, rows = texts_of(units), np.split(units.at, np.cumsum(units.n_unit)[:-1])
    assert ["".join(texts[n] for n in row)[1:] for row in rows] == lines
    chosen = np.arange(len(lines)) % 3 > 0
    chosen_lines = [line for n, line in enumerate(lines) if n % 3]
    assert units.some(chosen) == chosen_lines and units.text(chosen).decode() == "\n".join(chosen_lines)
    assert units.n_char.tolist() == list(map(len, lines))
    assert units.lines == [line.encode() for line in lines]
    assert units.n_word().tolist() == [len(line.split()) for line in lines]


@pytest.mark.parametrize(
    ("normalize", "whitespace"), [("nfc", "unified"), ("nfkc", "unified"), ("nfkc", "kept"), ("none", "kept")]
)
@pytest.mark.parametrize("symbols", [(), ("<b>", "12")])
@pytest.mark.parametrize("kinds", [(), ("number", "tag", "url")])
def test_units_give_the_ids_and_word_counts_of_their_lines(normalize, whitespace, symbols, kinds):
    lines = [protected(line, kinds)[0] for line in odd_lines(7, 120)]
    assert any("\ud800" <= letter <= "\udbff" for line in lines for letter in line) == bool(kinds)
    config = SubwordsConfig(vocab_size=400, normalize=normalize, whitespace=whitespace, symbols=symbols)
    subwords = learnt_subwords(lines, lines[:50], config, protect=kinds)
    units, words_of = units_of(lines), WordsOf(config)
    codec = subwords.src
    rows = np.split(units.at, np.cumsum(units.n_unit)[:-1])
    expected = Counter(word for line in lines for word in words_of(f" {line}"))
    n_occurrence = np.bincount(units.at, minlength=len(units.keys))
    present = np.flatnonzero(n_occurrence)
    words, counts = units.known.part(UnitWords, words_of).counted(units.which[present], n_occurrence[present])
    assert dict(zip(words, counts.tolist(), strict=True)) == expected
    texts = [texts_of(units)[n] for n in present]
    assert words == list(dict.fromkeys(word for text in texts for word in words_of(text)))
    found = Ragged(*units.known.part(UnitIds, codec).rows.of(units.which)).rows()
    assert [[i for n in row for i in found[n].tolist()] for row in rows] == codec.encode(lines)


def test_alignment_words_of_units_equal_those_of_whole_lines():
    lines = odd_lines(3)
    units = units_of(lines)
    words, n_word = units.known.part(UnitFacts).words.of(units.which[units.at])
    line_numbers = np.repeat(np.repeat(np.arange(len(lines)), units.n_unit), n_word)
    block_words = Block(lines).words()
    pairs = zip(line_numbers.tolist(), words.tolist(), strict=True)
    assert sorted(pairs) == sorted(zip(block_words[1].tolist(), block_words[0].tolist(), strict=True))


def test_anchors_are_the_rarest_words_of_a_line_shared_by_both_sides():
    rng = np.random.default_rng(3)
    sides = []
    for _ in range(2):
        n_word = rng.integers(0, 20, 300)
        hashed = (rng.random(n_word.sum()) ** 3 * 60).astype(np.uint16) + 1
        sides.append((hashed, np.repeat(np.arange(300), n_word)))
    frequency = Counter(np.concatenate([hashed for hashed, _ in sides]).tolist())
    shared = set(sides[0][0].tolist()) & set(sides[1][0].tolist())
    for (hashed, line), found in zip(sides, anchors_of(*sides, 300), strict=True):
        for n in range(300):
            expected = sorted(set(hashed[line == n].tolist()) & shared, key=lambda word: (frequency[word], word))
            assert [anchor for anchor in found[n].tolist() if anchor != NO_ANCHOR] == expected[:N_ANCHOR]


def test_near_duplicate_lines_have_the_same_bag():
    lines = [*odd_lines(4), *(f"{a}hapter {n}{b} the longest title" for a in "cC" for b in ".:" for n in (1, 23))]
    near, numberless, *_ = Block(lines).near()
    units = units_of(lines)
    bags = units.bags()
    assert bags.tolist() == Block(lines).bags().tolist()
    for hashes in (near, numberless):
        bag_of = {}
        for line_hash, bag in zip(hashes.tolist(), bags.tolist(), strict=True):
            assert bag_of.setdefault(line_hash, bag) == bag
    assert len(set(numberless.tolist())) < len(set(near.tolist())) < len(set(lines))


@pytest.mark.parametrize("protect", [[], ["number", "tag", "url"]])
def test_bytes_do_not_depend_on_the_number_of_workers(tmp_path, monkeypatch, protect, capfd):
    monkeypatch.setattr(keep, "N_PAIR", 40)
    monkeypatch.setattr(keep, "_WORTHWHILE", 1)
    # A library that prints when it is imported does not disturb the workers.
    (tmp_path / "sitecustomize.py").write_bytes(b"print('a library says hello', flush=True)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    outputs = {}
    for n_worker in (1, 2):
        rng = random.Random(1)
        src, trg = [*SRC, *odd_lines(1, 60)], [*TRG, *odd_lines(2, 60)]
        src, trg = ([side[n] for n in [rng.randrange(len(src)) for _ in range(300)]] for side in (src, trg))
        src += ["um 7 Uhr <b>eins</b>", "Zug 12,  (345)"]
        trg += ["<b>one</b> at 7 o'clock", "train (345) 12"]
        folder = tmp_path / str(n_worker)
        folder.mkdir()
        options = {"drop_near_duplicates": True, "max_translations": 3, "max_len": 90, "protect": protect}
        prepare(recipe_in(folder, src, trg, workers=n_worker, **options), folder / "out")
        files = ("train.arrow", "valid.arrow", "subwords.json")
        outputs[n_worker] = [hashlib.sha256((folder / "out" / name).read_bytes()).digest() for name in files]
        outputs[n_worker].append((folder / "out" / "report.json").read_text().replace(str(folder), ""))
        notes = json.loads(outputs[n_worker][-1])["notes"]
        assert bool(notes.get("protected") and notes.get("unlike_items")) == bool(protect)
    assert outputs[1] == outputs[2]
    assert capfd.readouterr().err.count("a library says hello") == 2


def test_blocks_of_long_lines_have_fewer_pairs():
    blocks = list(keep.cut_blocks(iter([("x" * 20_000, "y")] * 500 + [("x", "y")] * 25_000)))
    assert list(map(len, blocks)) == [300, 10_000, 10_000, 5_200]


def test_fast_path_for_easy_words_equals_the_pre_tokenizer():
    rng = random.Random(1)
    letters = "aZ9é ÿ'ß×÷.!~\x7f\u0100s_ÀdreveTmll½ªµ\u00a0’«—…řſяЖҁ҂°"
    texts = [" " + "".join(rng.choices(letters, k=rng.randint(1, 8))) for _ in range(3000)]
    texts += [f" {a}'{b}" for a in ("I", "é", "9", "") for b in ("s", "S", "ll", "re x", "des", "'t")]
    words_of = WordsOf(SubwordsConfig(normalize="nfkc"))
    for unit in texts:
        text = " " + normalised(unit[1:], "nfkc", "unified")
        assert words_of(unit) == [word for word, _ in in_words().pre_tokenize_str(text)]


def test_replacing_a_full_lexicon_does_not_change_the_data(tmp_path, monkeypatch):
    monkeypatch.setattr(keep, "N_PAIR", 30)
    outputs, lexicons = [], []
    monkeypatch.setattr(block_work, "Lexicon", lambda: lexicons.append(Lexicon()) or lexicons[-1])
    for n, most in enumerate((200_000, 20)):
        lexicons.clear()
        monkeypatch.setattr(units_module, "MOST_REMEMBERED", most)
        folder = tmp_path / str(n)
        folder.mkdir()
        recipe = recipe_in(
            folder, [*SRC, *odd_lines(1, 100)], [*TRG, *odd_lines(2, 100)], alarms="warn", workers=1, protect=["number"]
        )
        prepare(recipe, folder / "out")
        files = ("train.arrow", "subwords.json", "report.json")
        outputs.append([(folder / "out" / name).read_bytes().replace(str(folder).encode(), b"") for name in files])
        assert (len(lexicons) > 4) == bool(n), "two for each side suffice, or do not"
    assert outputs[0] == outputs[1]


def test_full_disk_error_names_the_file_and_the_reason(tmp_path):
    side = survey.BlockSide(*(np.zeros(5_000, np.int64) for _ in survey.BlockSide._fields))
    block = survey.BlockContent(np.ones(5_000, dtype=bool), [side, side])
    with full_disk(100), pytest.raises(OSError, match="File too large") as raised:
        survey.write_block(tmp_path / "block", block)
    assert raised.value.filename == str(tmp_path / "block")
