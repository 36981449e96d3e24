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

One YAML file is the whole truth of an experiment. A new one needs a `name` and two pairs of files; everything else has
a default. Any option can be overridden on the command line by its dotted name: `nmt-train RECIPE --optim.lr 5e-4`.

- Names are looked for beside the recipe, then in the current folder, those of corpus files also in the folder that
  `NMT_DATA` names.
- Only `true` and `false` are truth values, `1e-4` is a number and `no` is Norwegian; anchors, aliases and tags are
  refused, and so is a key that is written twice.
- What is wrong is told before any work: file, line, option, what was found and what is expected.
- The resolved recipe, every option spelled out, lies in the run folder; nothing needs the original file again.
- `schema.json` lets an editor complete and check recipes: start yours with the first line of the ones here.

| recipe | what it is |
|---|---|
{list}
This page is made by `python tools/option_tables.py`; an empty default means what the description says.

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
