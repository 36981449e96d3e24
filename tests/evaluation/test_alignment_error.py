"""Alignment error rate against cases that were counted by hand, and gold files that are not what they should be."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.errors import DataError
from nmt.evaluation.alignment_error import AlignmentError, Gold, check_gold, links_of, parse_gold, read_gold
from nmt.evaluation.word_links import bare, word_links


def error_of(*lines):
    found = AlignmentError()
    for links, gold in lines:
        found.add(links_of(links), parse_gold(gold, "gold:1"))
    return found


@pytest.mark.parametrize(
    ("links", "gold", "aer", "precision", "recall"),
    [
        ("0-0 1-1", "0-0 1-1", 0, 100, 100),
        # A = {00, 11, 22}, S = {00, 12}, P = S and {11}: A∩S = {00}, A∩P = {00, 11}, so AER = 1 - 3/5
        ("0-0 1-1 2-2", "0-0 1-2 1?1", 40, 200 / 3, 50),
        # what is possible only costs nothing when it is found, and nothing when it is not
        ("0-0", "0-0 1?1", 0, 100, 100),
        ("0-0 1-1", "0-0 1?1", 0, 100, 100),
        ("1-1", "0-0 1?1", 50, 100, 0),  # 1 - (0 + 1) / (1 + 1)
        ("0-1", "1-0", 100, 0, 0),
        ("", "0-0", 100, 100, 0),
        ("0-0", "", 100, 0, 100),
        ("", "", 0, 100, 100),
        ("0-0 0-0", "0-0 0?0", 0, 100, 100),  # a link that is sure is possible; twice is once
    ],
)
def test_the_formula_of_och_and_ney(links, gold, aer, precision, recall):
    found = error_of((links, gold))
    assert (found.aer, found.precision, found.recall) == pytest.approx((aer, precision, recall))


def test_lines_are_counted_together():
    found = error_of(("0-0", "0-0"), ("0-0 1-0 2-0", "0-0 1-1 1?0"), ("", ""))
    # |A| = 1 + 3, |S| = 1 + 2, |A∩S| = 1 + 1, |A∩P| = 1 + 2
    assert found.aer == pytest.approx(100 * (1 - 5 / 7))
    assert (found.precision, found.recall) == pytest.approx((75, 200 / 3))
    assert found.as_json == {
        "aer": found.aer,
        "precision": found.precision,
        "recall": found.recall,
        "n_link": 4,
        "n_sure": 3,
        "n_possible": 4,
        "n_line": 3,
    }
    assert found.text.startswith("AER = 28.6 % (precision 75.0 %, recall 66.7 %; 4 links, 3 sure and 1 more possible")


LINKS = st.frozensets(st.tuples(st.integers(0, 4), st.integers(0, 4)))


@given(links=LINKS, sure=LINKS)
def test_where_all_links_are_sure_it_is_one_minus_f1(links, sure):
    found = AlignmentError()
    found.add(links, Gold(sure, sure))
    f1 = 2 * found.precision * found.recall / (found.precision + found.recall) if links & sure else 0.0
    if links and sure:
        assert math.isclose(found.aer, 100 - f1, abs_tol=1e-9)
    assert 0 <= found.aer <= 100


@pytest.mark.parametrize("wrong", ["0-0 1:2", "1", "1-", "-1-2", "0-0,1-1", "a-b", "1-2-3", "1!2", "²-1", "0.5-1"])
def test_a_malformed_line_is_named_with_its_file_and_number(tmp_path, wrong):
    (tmp_path / "gold").write_text(f"0-0\n\n{wrong} 3-3\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"gold:3: .* is no link"):
        read_gold(str(tmp_path / "gold"))


def test_a_gold_file_is_read_line_by_line(tmp_path):
    (tmp_path / "gold").write_bytes(b"0-0 1?2\r\n\n \t3-1\n")
    assert read_gold(str(tmp_path / "gold")) == [
        Gold(frozenset({(0, 0)}), frozenset({(0, 0), (1, 2)})),
        Gold(frozenset(), frozenset()),
        Gold(frozenset({(3, 1)}), frozenset({(3, 1)})),
    ]


@pytest.mark.parametrize(("link", "side"), [("3-0", "source has 3"), ("0?2", "translation has 2")])
def test_a_link_of_a_word_that_is_not_there_is_named(link, side):
    check_gold(parse_gold("2-1", "gold:1"), 3, 2, "gold:1")
    with pytest.raises(DataError, match=f"gold:7: .*{side} words"):
        check_gold(parse_gold(link, "gold:7"), 3, 2, "gold:7")


# -- links without people ----------------------------------------------------------------------------------------------


def test_words_that_occur_together_are_linked_whatever_their_order():
    pairs = [
        ("das Haus", "the house"),
        ("das Buch", "the book"),
        ("ein Buch", "a book"),
        ("klein ist das Haus", "the house is small"),
        ("ein Haus ist klein", "a house is small"),
        ("klein", "small"),
    ]
    src, trg = ([line.split() for line in side] for side in zip(*pairs, strict=True))
    found = word_links(src, trg)
    assert [sorted(one.sure) for one in found] == [
        [(0, 0), (1, 1)],
        [(0, 0), (1, 1)],
        [(0, 0), (1, 1)],
        [(0, 3), (1, 2), (2, 0), (3, 1)],
        [(0, 0), (1, 1), (2, 2), (3, 3)],
        [(0, 0)],
    ]
    assert all(one.sure <= one.possible for one in found)


def test_words_that_are_alike_are_linked_in_their_order():
    (found, *_) = word_links([["x", "a", "x"], ["a"], ["x"]], [["y", "b", "y"], ["b"], ["y"]])
    assert sorted(found.sure) == [(0, 0), (1, 1), (2, 2)]


def test_a_link_is_sure_where_both_directions_agree_and_possible_where_one_does():
    one, other = [["a", "b"], ["a"], ["c"]], [["x"], ["x"], ["y"]]  # x comes from a; b may come from x
    for src, trg, only_one in ((one, other, (1, 0)), (other, one, (0, 1))):
        (found, *_) = word_links(src, trg)
        assert sorted(found.sure) == [(0, 0)] and sorted(found.possible) == [(0, 0), only_one]


def test_a_side_without_words_has_no_links():
    assert word_links([[], ["a"]], [["b"], []]) == [Gold(frozenset(), frozenset())] * 2
    assert word_links([], []) == [] and word_links([[]], [[]]) == [Gold(frozenset(), frozenset())]


def test_more_than_memory_holds_is_refused_with_what_would_do(monkeypatch):
    monkeypatch.setattr("nmt.evaluation.word_links.MOST_PAIRS", 13)
    assert len(word_links([["a", "b"]] * 1, [["a", "b"]] * 1)) == 1
    with pytest.raises(DataError, match=r"3 lines are too many.* first 1,"):
        word_links([["a", "b"]] * 3, [["a", "b"]] * 3)


def test_words_are_counted_without_case_and_punctuation():
    assert bare(["„Haus“,", "Straße", "...", "e-mail!", "3,5"]) == ["haus", "strasse", "...", "e-mail", "3,5"]
