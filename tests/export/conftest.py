import pytest
import tiny

from nmt.data.subwords import Subwords
from nmt.recipe.reader import read_recipe


@pytest.fixture(scope="session")
def subwords():
    config = read_recipe(None, list(tiny.SMALL.items())).subwords
    return Subwords.train(lambda: tiny.LINES, lambda: tiny.LINES, config)


@pytest.fixture
def run(subwords, tmp_path):
    """A run folder, and beside it a file of lines."""
    (tmp_path / "lines").write_text("\n".join(tiny.LINES), encoding="utf-8")
    return tiny.saved(tmp_path / "run", subwords, *tiny.made(subwords))
