"""nmt-translate on how each line came about: alignments, attention, tries at what looks wrong, several references."""

import json
from collections import Counter

import pytest
from made_run import SOURCE

from nmt.evaluation.metrics import score
from tests.documented import documented


def objects(lines):
    return [json.loads(line) for line in lines]


def test_each_subword_has_an_origin_and_words_have_those_of_their_subwords(translate):
    for one in objects(translate("--format", "jsonl")[0]):
        if "blank" in one["flags"]:
            assert (one["source_tokens"], one["alignment"], one["word_alignment"]) == ([], [], "")
            continue
        assert len(one["alignment"]) == len(one["tokens"]) and one["tokens"][-1] == "</s>"
        assert one["source_tokens"][-1] == "</s>" and one["alignment"][-1] is None
        assert all(0 <= i < len(one["source_tokens"]) - 1 for i in one["alignment"][:-1])
        pairs = [tuple(map(int, pair.split("-"))) for pair in one["word_alignment"].split()]
        assert {j for _, j in pairs} == set(range(len(one["output"].split())))
        assert {i for i, _ in pairs} <= set(range(len(one["source"].split())))


def test_json_lines_have_the_documented_fields_and_no_others(translate):
    page = documented("JSONL output")[""]
    always = {name for name, when in page.items() if when == "always"}
    assert all(set(one) == always for one in objects(translate("--format", "jsonl")[0]))
    (one,) = objects(translate("--format", "jsonl", "--retry-suspect", source=b"the ship")[0])
    assert set(one) == set(page) - {"items"}


def test_what_a_line_shows_does_not_depend_on_its_batch(translate):
    together, alone = (objects(translate("--format", "jsonl", *flags)[0]) for flags in ([], ["--decode.window", 1]))
    for name in ("tokens", "source_tokens", "alignment", "word_alignment", "flags"):
        assert [one[name] for one in together] == [one[name] for one in alone]


def test_a_line_with_too_much_attention_is_not_drawn(translate, tmp_path, monkeypatch):
    monkeypatch.setattr("nmt.decoding.translation.MOST_SHOWN", 60)
    source = b"the old ship left in May " * 9
    flags = ["--decode.max_src_len", 20, "--attention", tmp_path / "a.html"]
    _, err = translate(*flags, source=b"the ship\n" + source)
    assert "warning: <stdin>:2: not drawn" in err and (tmp_path / "a.html").exists()
    lines, err = translate(*flags, "--overwrite", source=source, code=2)
    assert len(lines) == 1 and "of its 1 lines none can be drawn" in err


def test_what_looks_wrong_is_tried_again_and_counted(translate, monkeypatch):
    def odd(line, translation, *_):  # reasons that differ from try to try, as an untrained model gives none
        return ["odd", "wrong"][: sum(map(ord, translation.text)) % 3] if translation.hypotheses else []

    monkeypatch.setattr("nmt.decoding.evidence.complaints", odd)
    source = "\n".join(["", "the ship", "old", "in May", "left", "the old ship", "May", "ship", "für Übung"]).encode()
    flags = ("--format", "jsonl", "--decode.n_best", 2, "--decode.samples", 4, "--decode.max_len_a", 1)
    once = objects(translate(*flags, source=source)[0])
    lines, err = translate(*flags, "--retry-suspect", source=source)
    again, kinds = objects(lines), Counter()
    for first, one in zip(once, again, strict=True):
        assert "retry" not in first
        if one["retry"] in ("beam", "mbr"):
            assert len(one["flags"]) < len(first["flags"])
            assert one["output"] == one["n_best"][0]["output"] != first["output"]
            kinds["better but not right" if one["flags"] else "mended"] += 1
        else:
            assert (one["output"], one["flags"]) == (first["output"], first["flags"])
            assert one["retry"] == ("first" if set(first["flags"]) - {"blank"} else None)
            kinds["as they were"] += one["retry"] == "first"
        assert sum(one["token_log_probs"]) == pytest.approx(one["log_prob"], abs=1e-4)  # of what is written
    assert len([n for n in kinds.values() if n]) > 1
    told = [f"{kinds[name]} {name}" for name in ("mended", "better but not right", "as they were")]
    assert f"{kinds.total()} translations looked wrong and were tried again: {', '.join(told)}" in err
    alone = objects(translate(*flags, "--retry-suspect", "--decode.window", 1, source=source)[0])
    assert [(one["output"], one["retry"]) for one in alone] == [(one["output"], one["retry"]) for one in again]


def test_several_references_all_count(translate, tmp_path):
    lines, _ = translate()
    others = [["wrong"] * 6, [*lines[:3], "wrong", *lines[4:]], ["", *lines[1:]]]
    flags = []
    for number, one in enumerate(others):
        (tmp_path / f"ref{number}").write_text("".join(line + "\n" for line in one), encoding="utf-8")
        flags += ["--ref", tmp_path / f"ref{number}"]
    _, err = translate(
        *flags,
    )
    wanted = score(lines, others[0], more=others[1:], intervals=True, trg_lang="en")
    assert all(one.text in err for one in wanted.values())
    assert "nrefs:3" in err and "exact match = 100.0 % of 6 lines" in err


def test_references_without_text_are_counted_and_named(translate, tmp_path):
    source = b"".join(b"the ship %d\n" % n for n in range(24)) + b"\n"
    reference = tmp_path / "ref"
    reference.write_text("a\n\n" * 12 + "a\n", encoding="utf-8")
    _, err = translate("--ref", reference, source=source)
    assert (
        f"warning: {reference}: 12 of 25 references are blank where the source is not (lines 2, 4, 6, 8, 10, 12, 14, "
        "16, 18, 20 and 2 more): they lower the scores\n" in err
    )
    assert f"warning: {reference}: 1 of 25 have text where the source is blank (line 25): they lower" in err
    reference.write_text("a\n" * 24 + "\n", encoding="utf-8")
    assert "blank" not in translate("--ref", reference, source=source)[1]


def test_where_no_reference_has_text_there_is_nothing_to_score(translate, tmp_path):
    (tmp_path / "ref").write_bytes(b"\n \n")
    out, err = translate("--ref", tmp_path / "ref", source=b"the ship\nin May\n", code=2)
    assert f"{tmp_path / 'ref'}: all 2 lines are blank, so there is nothing to score" in err and not out
    (tmp_path / "ref").write_bytes(b"a\n\n")
    err = translate("--ref", tmp_path / "ref", source=b"\nin May\n", code=2)[1]
    assert "no line has text beside a source that has some" in err


@pytest.mark.parametrize("piped", [True, False])
def test_a_reference_that_is_shorter_than_the_others_is_named(translate, tmp_path, piped):
    for name, content in (("in", SOURCE + b"\n"), ("ref1", b"a\n" * 6), ("ref2", b"a\n" * 5)):
        (tmp_path / name).write_bytes(content)
    flags = ["--ref", tmp_path / "ref1", "--ref", tmp_path / "ref2", *([] if piped else ["--input", tmp_path / "in"])]
    out, err = translate(*flags, code=2)
    assert f"{tmp_path / 'ref2'} has 5" in err and "6 lines" in err
    assert out == []  # known before the work


@pytest.fixture
def blind(monkeypatch):
    """The model of a run becomes one that writes without looking at the source, as far as anybody can ask it."""
    monkeypatch.setattr("nmt.models.base.SearchModel.attends", False)


def test_a_model_that_looks_nowhere_tells_of_everything_else(translate, monkeypatch):
    told = objects(translate("--format", "jsonl")[0])
    monkeypatch.setattr("nmt.models.base.SearchModel.attends", False)
    for one, wanted in zip(objects(translate("--format", "jsonl")[0]), told, strict=True):
        assert set(wanted) - set(one) == {"alignment", "word_alignment"}
        told_otherwise = {name: pytest.approx(wanted[name]) for name in ("token_log_probs", "log_prob")}
        assert one == {name: told_otherwise.get(name, wanted[name]) for name in one}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--with-attention"], "--with-attention is gone: --attention FILE.html has"),
        (["--examples", "3"], "--examples is gone: put the files side by side"),
        (["--attention", "OUT.png", "--head", "3"], "heads 1 to 2"),
        (["--score", "x", "--retry-suspect"], "--retry-suspect has nothing to do"),
        (["--score", "x", "--decode.n_best", "2"], "so --decode.n_best has nothing to do"),
        (["--decode.shortlist", "256"], "decode.shortlist is gone"),
        (["--head", "2"], "--head needs --attention"),
        (["--layer", "last"], "--layer needs --attention"),
        (["--decode.low_score", "0.5"], "decode.low_score"),
    ],
)
def test_what_is_not_meant_is_said_before_the_work(translate, tmp_path, flags, message):
    out, err = translate(*(flag.replace("OUT", str(tmp_path / "out")) for flag in flags), code=2)
    assert message in err and "Traceback" not in err and out == []
