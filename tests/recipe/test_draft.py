"""The recipe that nmt-preprocess writes for editing: short, commented, and equal when read back."""

from pathlib import Path

import pytest

from nmt.cli.preprocess import OWN_CORPUS
from nmt.recipe.draft import SCHEMA, draft_text, write_draft
from nmt.recipe.fields import all_fields
from nmt.recipe.reader import read_recipe

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))
CORPUS = [
    ("name", "mine"), ("data.train", "[{src: a.de, trg: a.en}]"), ("data.valid", "{src: b.de, trg: b.en}"),
    ("data.src_lang", "de"), ("data.trg_lang", "en"), ("data.out", "prepared/mine"),
]  # fmt: skip
OVERRIDES = [
    [*CORPUS, *options]
    for options in (
        [],
        [("model.preset", "auto"), ("model.dropout", "0.3")],
        [("model.architecture", "attention"), ("model.scale_emb_or_prj", "prj")],
        [("model.trg_emb_prj_weight_sharing", "false"), ("model.emb_src_trg_weight_sharing", "false"),
         ("model.scale_emb_or_prj", "none"), ("model.prj_transform", "false")],
        [("model.preset", "base"), ("model.d_model", "256"), ("model.dropout", "0.1")],
        [("subwords.symbols", '["<url>", "<#>"]'), ("optim.rate_of", '{"encoder.*": 0.1}'), ("train.freeze", "[a, b]")],
        [("data.test", "{file: 'a: b.tsv', src_column: 1, trg_column: 2}"), ("data.train.0.weight", "2")],
    )
]  # fmt: skip


@pytest.mark.parametrize(("path", "given"), [*((path, []) for path in RECIPES), *((None, o) for o in OVERRIDES)])
def test_a_written_recipe_reads_back_equal(path, given, tmp_path):
    recipe = read_recipe(path, given if path or "model.architecture" in dict(given) else [*OWN_CORPUS, *given])
    write_draft(recipe, tmp_path / "recipe.yaml")
    assert read_recipe(tmp_path / "recipe.yaml") == recipe


def test_a_draft_is_short_and_commented_with_its_schema_beside_it(tmp_path):
    recipe = read_recipe(None, [*CORPUS, *OWN_CORPUS])
    lines = draft_text(recipe).split("\n")
    assert lines[0] == f"# yaml-language-server: $schema={SCHEMA}"
    assert len(lines) < 50 and sum("  # " in line for line in lines) >= 12
    assert "  # time_budget: 20m" in "\n".join(lines)
    assert max(map(len, lines)) <= 110
    write_draft(recipe, tmp_path / "recipe.yaml")
    assert (tmp_path / SCHEMA).stat().st_size > 10_000


def test_a_given_time_budget_is_written():
    text = draft_text(read_recipe(None, [*CORPUS, *OWN_CORPUS, ("train.time_budget", "20m")]))
    assert '\n  time_budget: "20m"' in text and "# time_budget" not in text


def test_comments_describe_existing_options():
    from nmt.recipe import draft

    known = {field.name for field in all_fields()} | {field.section for field in all_fields()}
    assert {*draft._COMMENTS, *draft._ALWAYS} <= known
