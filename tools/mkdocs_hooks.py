"""Hooks of mkdocs: add recipes/ to the site, and correct links of docs/ to ../recipes/."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the recipes and the option tables."""
    for path in sorted((ROOT / "recipes").iterdir()):
        files.append(File(f"recipes/{path.name}", str(ROOT), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Change links to ../recipes/ into links to recipes/, which is beside the pages on the site."""
    return markdown.replace("](../recipes/", "](recipes/")
