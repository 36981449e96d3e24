"""The generated option tables and JSON Schema are up to date and complete."""

import json
import re
from pathlib import Path

import option_tables
import pytest

from nmt.recipe.fields import all_fields, json_schema
from nmt.recipe.reader import read_recipe, write_recipe

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NO_OPTIONS = {"json", "safetensors", "translate", "score", "dev"}  # files, methods, an option of JoeyNMT
EDITOR_LINE = "# yaml-language-server: $schema=schema.json"


@pytest.mark.parametrize("name", ["README.md", "schema.json"])
def test_generated_files_match_the_options(name):
    expected = option_tables.readme() if name == "README.md" else json_schema()
    found = (ROOT / "recipes" / name).read_text(encoding="utf-8")
    assert found == expected, f"recipes/{name} is out of date: run python tools/option_tables.py"


def test_every_option_has_help_and_a_table_row():
    tables = option_tables.option_tables()
    for field in all_fields():
        assert field.help, field.name
        assert field.inner or f"| `{field.name}` |" in tables


def test_every_option_is_read_in_the_code():
    """Searched by name, outside the files that declare, compare and describe options."""
    recipe = ("_options", "options", "section", "places")
    files = [
        file for file in (ROOT / "nmt").rglob("*.py") if file.parent.name != "recipe" or file.stem.endswith(recipe)
    ]
    code = "\n".join(file.read_text(encoding="utf-8") for file in files)
    read = set(re.findall(r"\.(\w+)\b(?!\()", code)) | set(re.findall(r"""["'](\w+)["']""", code))
    unread = {field.name for field in all_fields() if field.name.rpartition(".")[2] not in read}
    assert unread <= {"regularize.noise.typo"}, "which stands last, and needs no name"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_option_named_on_a_page_exists(page):
    known = {field.name for field in all_fields()}
    sections = {name.partition(".")[0] for name in known if "." in name}
    spans = re.findall(r"`(\w+)\.(\w+)(?:: [^`]*)?`", page.read_text(encoding="utf-8"))
    named = {f"{section}.{name}" for section, name in spans if section in sections and name not in NO_OPTIONS}
    assert named - known == set()


def test_the_schema_refuses_unknown_keys_everywhere():
    schema = json.loads(json_schema())
    for part in [schema, *schema["$defs"].values()]:
        assert part["additionalProperties"] is False
    assert schema["required"] == ["name"]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_a_shipped_recipe_resolves_and_reads_back_equal(path, tmp_path):
    recipe = read_recipe(path)
    write_recipe(recipe, tmp_path / "resolved.yaml")
    assert read_recipe(tmp_path / "resolved.yaml") == recipe
    assert f"{recipe.name}.yaml" == path.name


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_a_shipped_recipe_describes_its_corpus_hardware_and_commands(path):
    lines = path.read_text(encoding="utf-8").split("\n")
    assert lines[0] == EDITOR_LINE
    comment = "\n".join(line for line in lines if line.startswith("#"))
    for word in ("Corpus", "Hardware", "nmt-preprocess", "nmt-translate", path.name):
        assert word in comment, word
