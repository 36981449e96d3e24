"""Environment variables of torchrun, valid and invalid."""

import pytest

from nmt.errors import NmtError
from nmt.processes import ProcessRank, process_rank

VARIABLES = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}


def test_process_rank_is_read_from_the_environment():
    assert process_rank({}) == process_rank({"WORLD_SIZE": "1"}) == ProcessRank(0, 1, 0)
    assert process_rank(VARIABLES) == ProcessRank(1, 4, 1)
    assert process_rank({"RANK": "1", "WORLD_SIZE": "4"}) == ProcessRank(1, 4, 0)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE='two'"),
        ({"WORLD_SIZE": ""}, "WORLD_SIZE=''"),
        ({"RANK": None}, "RANK=''"),
        ({"RANK": "4"}, "RANK='4'"),
        ({"LOCAL_RANK": "-1"}, "LOCAL_RANK='-1'"),
    ],
)
def test_error_names_the_invalid_variable(change, named):
    environment = {name: value for name, value in {**VARIABLES, **change}.items() if value is not None}
    with pytest.raises(NmtError, match=rf"{named}.*unset WORLD_SIZE"):
        process_rank(environment)
