"""Work in blocks: whatever a block, a helper or a fast path does, the answer is that of pair after pair."""

import hashlib
import json
import random
from collections import Counter

import numpy as np
import pytest

from nmt.data import block_work, keep
from nmt.data import units as lexicon_file
from nmt.data.arrays import Ragged
from nmt.data.letters import WordsOf, in_words, normalised
from nmt.data.placeholders import BYTES, protected
from nmt.data.prepare import prepare
from nmt.data.survey import line_hashes
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


def nasty(seed, n=400):
    rng = random.Random(seed)
    return [rng.choice(["", " "]).join(rng.choices(LINES, k=rng.randint(0, 9))) for _ in range(n)]


def sides(seed):
    src, trg = nasty(seed), nasty(seed + 1)
    src[::7], src[1::7] = trg[::7], [f" {line}  " for line in trg[1::7]]
    return src, trg


def units(lines, normalize="nfc", known=None):
    return Units("".join(f"{line}\n" for line in lines).encode(**BYTES), normalize, known or lexicon())


def lexicon():
    """One that knows other lines already."""
    known = Lexicon()
    Units("".join(f"{line}\n" for line in nasty(99, 50)).encode(), "nfc", known)
    known.part(UnitFacts)
    return known


def texts_of(of):
    return [" " + key[:-1].decode(**BYTES) for key in of.keys]


@pytest.mark.parametrize("seed", range(3))
def test_units_put_together_are_the_lines(seed):
    lines = nasty(seed)
    of = units(lines)
    texts, rows = texts_of(of), np.split(of.at, np.cumsum(of.n_unit)[:-1])
    assert ["".join(texts[n] for n in row)[1:] for row in rows] == lines
    chosen = np.arange(len(lines)) % 3 > 0
    some = [line for n, line in enumerate(lines) if n % 3]
    assert of.some(chosen) == some and of.text(chosen).decode() == "\n".join(some)
    assert of.n_char.tolist() == list(map(len, lines))
    assert of.n_byte.tolist() == [len(line.encode()) for line in lines]
    assert of.n_word().tolist() == [len(line.split()) for line in lines]


@pytest.mark.parametrize(
    ("normalize", "whitespace"), [("nfc", "unified"), ("nfkc", "unified"), ("nfkc", "kept"), ("none", "kept")]
)
@pytest.mark.parametrize("symbols", [(), ("<b>", "12")])
@pytest.mark.parametrize("kinds", [(), ("number", "tag", "url")])
def test_units_are_encoded_and_learnt_from_as_their_lines_are(normalize, whitespace, symbols, kinds):
    lines = [protected(line, kinds)[0] for line in nasty(7, 120)]
    assert any("\ud800" <= letter <= "\udbff" for line in lines for letter in line) == bool(kinds)
    config = SubwordsConfig(vocab_size=400, normalize=normalize, whitespace=whitespace, symbols=symbols)
    subwords = learnt_subwords(lines, lines[:50], config, protect=kinds)
    of, words_of = units(lines, normalize), WordsOf(config)
    codec = subwords.src
    rows = np.split(of.at, np.cumsum(of.n_unit)[:-1])
    notes, of_lines = Counter(), Counter()
    plain = Counter(word for line in lines for word in words_of(f" {line}", of_lines))
    n_of = np.bincount(of.at, minlength=len(of.keys))
    occur = np.flatnonzero(n_of)
    words, n = of.known.part(UnitWords, words_of).counted(of.which[occur], n_of[occur], notes)
    assert dict(zip(words, n.tolist(), strict=True)) == plain and notes == of_lines and notes["word_cap"] > 1
    texts = [texts_of(of)[n] for n in occur]
    assert words == list(dict.fromkeys(word for text in texts for word in words_of(text, Counter())))
    found = Ragged(*of.known.part(UnitIds, codec).rows.of(of.which)).rows()
    assert [[i for n in row for i in found[n].tolist()] for row in rows] == codec.encode(lines)


def test_words_to_align_by_are_those_of_whole_lines():
    lines = nasty(3)
    of = units(lines)
    words, n = of.known.part(UnitFacts).words.of(of.which[of.at])
    line = np.repeat(np.repeat(np.arange(len(lines)), of.n_unit), n)
    whole = Block(lines).words()
    pairs = zip(line.tolist(), words.tolist(), strict=True)
    assert sorted(pairs) == sorted(zip(whole[1].tolist(), whole[0].tolist(), strict=True))


def test_anchors_are_the_rarest_words_of_a_line_that_both_sides_have():
    rng = np.random.default_rng(3)
    sides = []
    for _ in range(2):
        n_of = rng.integers(0, 20, 300)
        hashed = (rng.random(n_of.sum()) ** 3 * 60).astype(np.uint16) + 1
        sides.append((hashed, np.repeat(np.arange(300), n_of)))
    times = Counter(np.concatenate([hashed for hashed, _ in sides]).tolist())
    shared = set(sides[0][0].tolist()) & set(sides[1][0].tolist())
    for (hashed, line), found in zip(sides, anchors_of(*sides, 300), strict=True):
        for n in range(300):
            its = sorted(set(hashed[line == n].tolist()) & shared, key=lambda mark: (times[mark], mark))
            assert [anchor for anchor in found[n].tolist() if anchor != NO_ANCHOR] == its[:N_ANCHOR]


def test_lines_that_are_near_have_the_same_bag():
    lines = [*nasty(4), *(f"{a}hapter {n}{b} the longest title" for a in "cC" for b in ".:" for n in (1, 23))]
    near, numberless, *_ = Block(lines).near()
    of = units(lines)
    bags = of.sums(of.known.part(UnitFacts).bags.values[of.which])
    assert bags.tolist() == Block(lines).bags().tolist()
    for hashes in (near, numberless):
        bag_of = {}
        for key, bag in zip(hashes.tolist(), bags.tolist(), strict=True):
            assert bag_of.setdefault(key, bag) == bag
    assert len(set(numberless.tolist())) < len(set(near.tolist())) < len(set(lines))


@pytest.mark.parametrize("protect", [[], ["number", "tag", "url"]])
def test_the_bytes_do_not_depend_on_who_does_the_work(tmp_path, monkeypatch, protect, capfd):
    monkeypatch.setattr(keep, "N_PAIR", 40)
    monkeypatch.setattr(keep, "_WORTHWHILE", 1)
    # Nor on libraries that print when they are loaded.
    (tmp_path / "sitecustomize.py").write_bytes(b"print('a library says hello', flush=True)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
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
    assert capfd.readouterr().err.count("a library says hello") == 2


def test_blocks_of_long_lines_have_fewer_pairs():
    blocks = list(keep.cut_blocks(iter([("x" * 20_000, "y")] * 500 + [("x", "y")] * 25_000)))
    assert list(map(len, blocks)) == [300, 10_000, 10_000, 5_200]


def test_easy_words_are_cut_as_all_others():
    rng = random.Random(1)
    letters = "aZ9é ÿ'ß×÷.!~\x7f\u0100s_ÀdreveTmll½ªµ\u00a0’«—…řſяЖҁ҂°"
    units_ = [" " + "".join(rng.choices(letters, k=rng.randint(1, 8))) for _ in range(3000)]
    units_ += [f" {a}'{b}" for a in ("I", "é", "9", "") for b in ("s", "S", "ll", "re x", "des", "'t")]
    words_of = WordsOf(SubwordsConfig(normalize="nfkc"))
    for unit in units_:
        text = " " + normalised(unit[1:], "nfkc", "unified")
        assert words_of(unit, Counter()) == [word for word, _ in in_words().pre_tokenize_str(text)]


@pytest.mark.parametrize("seed", range(3))
def test_lines_have_the_same_hash_if_they_are_the_same_but_for_white_space_around_them(seed):
    words = ["a", "b", "ab", "été", "日本", "\x85", "", "\t", "  "]
    rng = random.Random(seed)
    lines = [rng.choice(["", " ", "\u3000"]) + " ".join(rng.choices(words, k=rng.randint(0, 4))) for _ in range(500)]
    lines += nasty(seed)
    lines += [f" {line}\t" for line in lines[::2]]
    of = dict[str, int]()
    for text, found in zip(map(str.strip, lines), line_hashes(units(lines)).tolist(), strict=True):
        assert of.setdefault(text, found) == found
    assert len(set(of.values())) == len(of) > 200


def test_a_full_lexicon_is_left_for_an_empty_one_and_nothing_else_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(keep, "N_PAIR", 30)
    told, made = [], []
    monkeypatch.setattr(block_work, "Lexicon", lambda: made.append(Lexicon()) or made[-1])
    for n, most in enumerate((200_000, 20)):
        made.clear()
        monkeypatch.setattr(lexicon_file, "MOST_REMEMBERED", most)
        folder = tmp_path / str(n)
        folder.mkdir()
        recipe = recipe_in(
            folder, [*SRC, *nasty(1, 100)], [*TRG, *nasty(2, 100)], alarms="warn", workers=1, protect=["number"]
        )
        prepare(recipe, folder / "out")
        files = ("train.arrow", "subwords.json", "report.json")
        told.append([(folder / "out" / name).read_bytes().replace(str(folder).encode(), b"") for name in files])
        assert (len(made) > 4) == bool(n), "two for each side suffice, or do not"
    assert told[0] == told[1]


def test_a_full_disk_is_told_with_the_file_and_the_reason(tmp_path):
    side = block_work.BlockSide(*(np.zeros(5_000, np.int64) for _ in block_work.BlockSide._fields))
    block = block_work.BlockContent(np.ones(5_000, dtype=bool), [side, side])
    with full_disk(100), pytest.raises(OSError, match="File too large") as told:
        block_work.write_block(tmp_path / "block", block)
    assert told.value.filename == str(tmp_path / "block")
