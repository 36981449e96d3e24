"""Export to CTranslate2: the exported model is equivalent, for every architecture that CTranslate2 supports."""

from functools import partial

import pytest
from tiny import LINES, make_model

from nmt.errors import RunError
from nmt.export import ctranslate2 as exporter
from nmt.export.parity import ROUNDED, compare
from nmt.run import Run

pytest.importorskip("ctranslate2")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm": "pre"},
        {"norm": "pre", "norm_kind": "rms", "ffn": "swiglu"},
        {"ffn": "gelu", "scale_emb_or_prj": "emb"},
        {"position": "rotary"},
        {"position": "learned", "n_position": 7},
        {"n_position": 5},  # sinusoids continue beyond the table
        {"n_kv_head": 2},
        {"n_kv_head": 1, "attn_bias": "true"},
        {"n_kv_head": 1, "enc_n_kv_head": 2},
        {"enc_n_kv_head": 1},
        {"d_k": 16, "d_v": 16},
        {"ffn_bias": "false"},
        {"trg_emb_prj_weight_sharing": "false", "emb_src_trg_weight_sharing": "false"},
    ],
    ids=str,
)
def test_an_exported_model_translates_and_scores_alike(subwords, tmp_path, options):
    model, recipe = make_model(subwords, **options)
    exporter.export(model, recipe, subwords, tmp_path / "out", None)
    exported = partial(exporter.translate_and_score, tmp_path / "out")
    found = compare(model, subwords, exported, LINES, ROUNDED, most=40)
    assert found.n_same == found.n_line == len(LINES)
    assert found.worst < 1e-4


def test_an_exported_folder_is_refused_as_a_run(subwords, tmp_path):
    model, recipe = make_model(subwords)
    exporter.export(model, recipe, subwords, tmp_path / "ct2", None)
    with pytest.raises(RunError, match=r"ct2 is a CTranslate2 model, which only CTranslate2 reads"):
        Run(tmp_path / "ct2").weights_folder()
