"""Strict YAML reader: scalars of YAML 1.2, line numbers, and refused input."""

import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nmt.recipe.yaml_marks import MAX_BYTES, parse, quoted, scalar

TEXTS = ["no", "yes", "on", "Off", "y", "True", "1_000", "0x1f", "1:30", "2024-01-02", "1.2.3", "<<"]
VALUES = {"true": True, "false": False, "": None, "~": None, "null": None, "12": 12, "-3": -3, "010": 10, "1e-4": 1e-4,
          "1.0E5": 1e5, "1.5e-3": 1.5e-3, ".5": 0.5, "3.": 3.0}  # fmt: skip


@pytest.mark.parametrize(("text", "value"), [*zip(TEXTS, TEXTS, strict=True), *VALUES.items()])
def test_plain_scalars_follow_yaml_1_2(text, value):
    found = parse(f"key: {text}").value["key"]
    assert found == value
    assert type(found) is type(value)


def test_quoted_scalars_are_always_text():
    assert parse("""[ "1e-4", 'true', "", "~" ]""").value == ["1e-4", "true", "", "~"]


def test_every_name_has_a_line_number():
    document = parse("a: 1\nb:\n  c: [1, {d: 2}]\n  e: 3\n")
    assert document.lines == {"a": 1, "b": 2, "b.c": 3, "b.c.0": 3, "b.c.1": 3, "b.c.1.d": 3, "b.e": 4}


def test_a_duplicate_key_is_a_fault_and_the_rest_is_still_read():
    document = parse("a: {b: 1, b: 2}\nc: 3\n'a': 4\n")
    assert document.value == {"a": {"b": 1}, "c": 3}
    assert [(line, name) for line, name, _ in document.faults] == [(1, "a.b"), (3, "a")]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: &x 1\nb: *x\n", 1, "anchors, aliases"),
        ("a: 1\nb: *x\n", 2, "anchors, aliases"),
        ("a: 1\nb: !!python/object/apply:os.system ['true']\n", 2, "tags"),
        ("a: !!str 1\n", 1, "tags"),
        ("a: 1\nb: " + "[" * 30 + "]" * 30, 2, "nested deeper"),
        ("a: 1\n\tb: 2\n", 2, "tab"),
        ("a: [1\nb: 2\n", 2, "not YAML"),
        ("a: 1\n---\nb: 2\n", 2, "not YAML"),
        ("a: 1\n? [x]\n: 2\n", 2, "as a key"),
        ("a: 1\nb: \x07\n", 2, "U+0007"),
        ('a: "\\UFFFFFFFF"\n', 1, "not YAML"),
    ],
)
def test_unneeded_yaml_features_are_refused_with_their_line(text, line, words):
    (fault,) = parse(text).faults
    assert fault[0] == line
    assert words in fault[2]


def test_alias_bombs_and_huge_files_are_refused_before_expansion():
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 30))
    document = parse(bomb)
    assert document.faults
    assert document.value is None
    assert "nested deeper" in parse("[" * 100_000).faults[0][2]
    assert "larger than" in parse(b"#" * (MAX_BYTES + 1)).faults[0][2]


def test_invalid_utf8_is_refused_with_its_line():
    (fault,) = parse("a: 1\nb: gr\u00fcn\n".encode("latin-1")).faults
    assert fault[0] == 2
    assert "0xfc is not UTF-8" in fault[2]


def test_a_byte_order_mark_and_crlf_are_accepted():
    assert parse(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n").value == {"a": 1, "b": 2}


@given(st.text())
def test_quoted_text_reads_back_equal_here_and_in_pyyaml(text):
    document = parse(f"a: {quoted(text)}\n")
    assert document.value == {"a": text}
    assert not document.faults
    assert yaml.safe_load(f"a: {quoted(text)}\n") == {"a": text}


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_the_repr_of_a_float_reads_back_equal(number):
    found = scalar(repr(number))
    assert isinstance(found, float)
    assert found == number
    assert math.copysign(1, found) == math.copysign(1, number)
