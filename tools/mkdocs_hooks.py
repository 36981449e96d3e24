"""Hook of mkdocs: pages of docs/ may link to ../recipes/, whose files become part of the site."""

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
    """Change links to ../recipes/ into those of the site, where recipes/ lies beside the pages."""
    return markdown.replace("](../recipes/", "](recipes/")
