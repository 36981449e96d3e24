"""Nothing that is told beside a translation costs a translation: its own line's, or that of another line."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_run import HASTY

from nmt.decoding import evidence
from nmt.decoding.evidence import Evidence
from nmt.decoding.translator import Translator

MADE_OF = HASTY

# Any code point that a text can have, but those that end a line of the input.
_POINTS = st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\0")
_LINES = st.one_of(
    st.text(_POINTS, max_size=40),
    st.builds(lambda piece, n: (piece * n)[:n], st.text(_POINTS, min_size=1, max_size=5), st.integers(1, 50_000)),
    st.builds(" ".join, st.lists(st.text(_POINTS, max_size=9), max_size=60)),
)


@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(lines=st.lists(_LINES, max_size=4))
def test_every_format_has_the_same_texts_whatever_the_lines(translate, tmp_path_factory, lines):
    links = tmp_path_factory.mktemp("links") / "links"
    source = "".join(f"{line}\n" for line in lines).encode()
    call = ("--decode.beam", 1, "--decode.max_src_len", 64)
    wanted, _ = translate(*call, source=source)
    assert len(wanted) == len(lines)
    told = [json.loads(line) for line in translate(*call, "--format", "jsonl", source=source)[0]]
    assert [one["output"] for one in told] == wanted
    tsv, _ = translate(*call, "--format", "tsv", source=source)
    assert [line.split("\t", 4)[4] for line in tsv] == [line.replace("\t", " ") for line in wanted]
    assert translate(*call, "--alignments", links, source=source)[0] == wanted
    assert links.read_text(encoding="ascii").split("\n")[:-1] == [one["word_alignment"] for one in told]


def fails_for(word):
    def fail(*args, **named):
        raise ValueError(word)

    return fail


@pytest.mark.parametrize(
    ("owner", "name", "lost"),
    [
        (evidence, "word_alignment", {"word_alignment"}),
        (evidence, "joined_alignment", {"alignment", "word_alignment"}),
        (evidence, "subword_alignment", {"token_log_probs", "alignment", "word_alignment"}),
        (Evidence, "reasons", {"flags"}),
        (Translator, "token_log_probs", {"token_log_probs", "alignment", "word_alignment"}),
    ],
)
def test_a_field_that_fails_is_lost_alone_and_said_with_its_line(translate, monkeypatch, owner, name, lost):
    whole = [json.loads(line) for line in translate("--format", "jsonl")[0]]
    monkeypatch.setattr(owner, name, fails_for("on purpose"))
    lines, err = translate("--format", "jsonl")
    told = [json.loads(line) for line in lines]
    for number, (found, wanted) in enumerate(zip(told, whole, strict=True), start=1):
        changed = {key for key in wanted if found[key] != wanted[key] and key not in ("flags", "log_prob")}
        if wanted["output"]:
            assert changed == lost - {"flags"} and all(found[key] is None for key in changed)
            assert found["log_prob"] == pytest.approx(wanted["log_prob"], abs=1e-4)
            assert err.count(f"<stdin>:{number}: ") == 1
    assert "internal error (ValueError: on purpose)" in err and all(field in err for field in lost)


def test_a_line_that_fails_in_its_batch_leaves_the_others_what_they_have(translate, monkeypatch):
    source = b"the ship\nthe old ship\nin May"
    whole = [json.loads(line) for line in translate("--format", "jsonl", source=source)[0]]
    subword_alignment, n_source = evidence.subword_alignment, [len(one["source_tokens"]) for one in whole]
    assert n_source.count(n_source[1]) == 1

    def fail_on_the_second(weights, by):
        if weights.size(-1) == n_source[1]:
            raise ValueError("on purpose")
        return subword_alignment(weights, by)

    monkeypatch.setattr(evidence, "subword_alignment", fail_on_the_second)
    lines, err = translate("--format", "jsonl", "--decode.max_tokens", 4096, source=source)
    told = [json.loads(line) for line in lines]
    assert [one["alignment"] is None for one in told] == [False, True, False]
    assert [one["word_alignment"] for one in told if one["alignment"]] == [whole[n]["word_alignment"] for n in (0, 2)]
    assert err.count("internal error") == 1 and "<stdin>:2: " in err
