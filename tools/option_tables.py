"""Write recipes/README.md (the option tables) and recipes/schema.json from the models in nmt/recipe/options.py.

Run it after any change of an option: python tools/option_tables.py. A test compares the files.
"""

import argparse
from pathlib import Path

from nmt.recipe.fields import all_fields, json_schema, sections
from nmt.recipe.model_options import PRESETS

RECIPES = Path(__file__).parents[1] / "recipes"

_OPENING = """\
# Recipes

A recipe is one YAML file that defines an experiment. It needs `name`, `data.train`, and `data.valid` or
`data.valid_size`. On the command line, each option is a flag that overrides the recipe: `--optim.lr 5e-4`.

- Files are searched for beside the recipe, then in the current folder; corpus files also in the folder that the
  environment variable `NMT_DATA` names.
- Booleans are `true` and `false` only, `1e-4` is a number, and `no` is Norwegian. Anchors, aliases, tags and duplicate
  keys are refused.
- Mistakes are reported before any work starts: file, line, option, value found, value expected.
- The run folder has the resolved recipe with the values of all options; the original file is not needed again.
- With `schema.json`, an editor completes and checks recipes that begin with the same first line as these.

| recipe | description |
|---|---|
{list}
`python tools/option_tables.py` makes this page. The meaning of an empty default is in the description.

"""


def readme() -> str:
    rows = (f"| [{path.name}]({path.name}) | {_about(path)} |\n" for path in sorted(RECIPES.glob("*.yaml")))
    return _OPENING.replace("{list}", "".join(rows)) + option_tables()


def option_tables() -> str:
    """Return Markdown: a table of options per section, then the presets."""
    lines = list[str]()
    for section, about in sections():
        lines += [f"## `{section}`" if section else "## The experiment", "", about, ""]
        lines += ["| option | type | default | meaning |", "|---|---|---|---|"]
        for field in all_fields():
            if field.section == section and not field.inner:
                cells = (text.replace("|", "\\|") for text in (field.kind, field.default, field.help))
                lines.append(f"| `{field.name}` | {' | '.join(cells)} |")
        lines.append("")
    names = list(dict.fromkeys(name for sizes in PRESETS.values() for name in sizes))
    lines += ["## Presets", "", "What `model.preset` stands for; an option written beside it wins.", ""]
    lines += [f"| preset | {' | '.join(f'`{name}`' for name in names)} |", "|---" * (len(names) + 1) + "|"]
    for preset, sizes in PRESETS.items():
        lines.append(f"| `{preset}` | {' | '.join(str(sizes.get(name, '')) for name in names)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    for name, text in (("README.md", readme()), ("schema.json", json_schema())):
        (RECIPES / name).write_text(text, encoding="utf-8", newline="\n")


def _about(path: Path) -> str:
    """Return the first line of the opening comment of a recipe, after the line for editors."""
    lines = path.read_text(encoding="utf-8").split("\n")
    return next(line for line in lines if line.startswith("# ") and "yaml-language-server" not in line)[2:]


if __name__ == "__main__":
    main()
