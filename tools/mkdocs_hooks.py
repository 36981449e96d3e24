"""Hooks of mkdocs: add README, CONTRIBUTING and recipes/ to the site, and correct links to and from docs/."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside docs/ and the recipes."""
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "recipes").iterdir())):
        files.append(File(path.relative_to(ROOT).as_posix(), str(ROOT), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Correct relative links: on the site, the pages of docs/ are beside README and recipes/."""
    return markdown.replace("](../", "](").replace("](docs/", "](")
