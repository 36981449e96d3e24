"""--format pairs: of what --format jsonl tells, that which a model is trained on, and no more work than that needs."""

import json

import pytest

from nmt.decoding.translator import Translator


def test_pairs_are_three_fields_of_json_and_need_no_second_pass(translate, monkeypatch):
    flags = ("--decode.split", "every", "--decode.beam", 2)
    whole = [json.loads(line) for line in translate(*flags, "--format", "jsonl")[0]]
    monkeypatch.setattr(Translator, "token_log_probs", None)
    found = [json.loads(line) for line in translate(*flags, "--format", "pairs")[0]]
    assert found == [{name: one[name] for name in ("source", "output", "flags")} for one in whole]
    assert found[1] == {"source": "", "output": "", "flags": ["blank"]}
    assert any("low" in one["flags"] for one in found), "a model that nobody trained is sure of nothing"


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--show-scores"], "--format pairs has no place for scores"),
        (["--decode.n_best", "2"], "decode.n_best is 2: set it to 1"),
        (["--score", "given"], "--format pairs is for what was translated"),
    ],
)
def test_what_has_no_place_in_pairs_is_refused(translate, flags, complaint):
    assert complaint in translate("--format", "pairs", *flags, code=2)[1]
