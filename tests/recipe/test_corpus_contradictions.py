"""A corpus that cannot be meant is refused with its line, whatever else is wrong."""

import pytest

from nmt.errors import RecipeError
from nmt.recipe.reader import load_resolved, read_recipe, write_recipe

FILE = "file: a.tsv, src_column: 1, trg_column: 2"


@pytest.fixture
def read(tmp_path):
    def run(corpus, split="train"):
        path = tmp_path / "recipe.yaml"
        path.write_text(f"name: x\ndata:\n  {split}:\n    {corpus}\n", encoding="utf-8")
        return read_recipe(path)

    return run


@pytest.mark.parametrize(
    ("corpus", "complaint"),
    [
        ("{trg: b}", "data.train.0.src: missing (expected a file; or {file: …} or {dataset: …} with both sides)"),
        ("{}", "data.train.0.trg: missing"),
        (f"{{{FILE}, dataset: d, split: s}}", "data.train.0.dataset: data.train.0.file is given as well"),
        (f"{{{FILE}, src: a}}", "data.train.0.src: a file beside data.train.0.file, which has both sides"),
        ("{file: a.tsv, trg_column: 2}", "data.train.0.src_column: missing (expected the name of a column or key"),
        ("{file: a.tsv, src_column: 2, trg_column: 2}", "data.train.0.trg_column: 2 is data.train.0.src_column, too"),
        (
            "{file: a.tsv, src_column: 0, trg_column: 2}",
            "a whole number >= 1 | text | null, found the number 0",
        ),
        ("{dataset: d, src_column: a, trg_column: b}", "data.train.0.split: missing (expected the split"),
        (f"{{{FILE}, split: train}}", "data.train.0.split: there is no data.train.0.dataset to choose from"),
        ("{src: a, trg: b, subset: x}", "data.train.0.subset: there is no data.train.0.dataset"),
        (f"{{{FILE}, format: text}}", "data.train.0.file: data.train.0.format is text"),
        ("{src: a, trg: b, format: tsv}", "data.train.0.format: tsv, but no column is chosen"),
        ("{dataset: d, split: s, src_column: a, trg_column: b, format: tsv}", "data.train.0.format: a dataset says"),
        (f"{{{FILE}, format: jsonl, header: true}}", "data.train.0.header: only TSV and CSV have one"),
        ("{file: a.tsv, src_column: 1, trg_column: en, header: false}", "without one 'en' names no column"),
        ("{src: [], trg: b}", "data.train.0.src: no name in it"),
        ("{src: [a, ''], trg: b}", "data.train.0.src: no name in it"),
        ("{src: [a, 5], trg: b}", "data.train.0.src: expected text, or a list of them | null, found the number 5"),
    ],
)
def test_a_corpus_that_cannot_be_meant_is_refused_with_its_line(read, corpus, complaint):
    # What is missing stands nowhere: its corpus is named, or where there is but one the option.
    for written, places in ((f"- {corpus}", ("4: ",)), (corpus, ("3: ", "4: "))):
        with pytest.raises(RecipeError) as error:
            read(written)
        assert any(line.partition("yaml:")[2].startswith(places) and complaint in line for line in lines(error))


def lines(error):
    return str(error.value).split("\n")


def test_all_that_is_wrong_in_a_list_of_corpora_is_told_at_once(read):
    with pytest.raises(RecipeError) as error:
        read("- {src: a}\n    - {file: a.tsv, src_column: 0, trg_column: 2}\n    - {src: a, trg: b, split: x}")
    assert [line.split(": ")[0].rpartition(":")[2] for line in lines(error)] == ["4", "5", "6"]


@pytest.mark.parametrize(
    "corpus",
    [
        "{src: a, trg: b}",
        "{src: [a, 'b*'], trg: c}",
        "{file: a.tsv, src_column: 1, trg_column: no, header: true}",
        "{dataset: d, subset: de-en, split: 'train[:9]', src_column: translation.de, trg_column: translation.en}",
        "{src: out.tsv, src_column: 5, trg: mono.en}",
    ],
)
def test_a_recipe_comes_back_from_its_file_and_says_of_a_corpus_only_what_there_is(read, tmp_path, corpus):
    recipe = read(corpus)
    write_recipe(recipe, tmp_path / "resolved.yaml")
    assert load_resolved(tmp_path / "resolved.yaml") == recipe
    (line,) = [line for line in (tmp_path / "resolved.yaml").read_text(encoding="utf-8").split("\n") if "- {" in line]
    assert "null" not in line
