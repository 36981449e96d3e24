import pytest
import tiny

from nmt.recipe.reader import read_recipe
from tests.learnt import learnt_subwords


@pytest.fixture(scope="session")
def subwords():
    config = read_recipe(None, list(tiny.SMALL.items())).subwords
    return learnt_subwords(tiny.LINES, tiny.LINES, config)


@pytest.fixture
def run(subwords, tmp_path):
    """A run folder, and beside it a file `lines`."""
    (tmp_path / "lines").write_text("\n".join(tiny.LINES), encoding="utf-8")
    return tiny.save_model(tmp_path / "run", subwords, *tiny.make_model(subwords))
