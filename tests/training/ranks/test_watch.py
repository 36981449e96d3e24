"""Who ends a run, and how: without processes that train, over a store in memory."""

import os
import socket
import subprocess
import sys
import time
from threading import Thread

import pytest
import torch.distributed as dist

from nmt.errors import MachineError, NmtError, RecipeError
from nmt.training.parallel import Ranks
from nmt.training.ranks import watch
from nmt.training.ranks.roll_call import Card

TIMEOUT = 1.0
pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="brothers are known on Linux only")


@pytest.fixture
def brother():
    """A process that this one started."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def eyes(brother):
    """Rank 0, which is said to be the brother, and rank 1, which is said to be of the same parent."""
    store = dist.HashStore()
    watch.prepare(store, 2)
    cards = [Card(rank, socket.gethostname(), brother.pid, os.getpid(), str(rank)) for rank in range(2)]
    eyes = [watch.Watch(store, rank, cards, TIMEOUT) for rank in range(2)]
    yield eyes
    for eye in eyes:
        eye._over.set()


def verdict(eye):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        eye.check()
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("error", "told", "kind"),
    [
        (KeyError("foo"), "KeyError: 'foo'", MachineError),
        (RecipeError("optim.lr was 1\nand more"), "optim.lr was 1", NmtError),
    ],
)
def test_an_error_of_rank_0_is_told_with_its_kind_and_code_and_rank_0_lives_to_say_more(
    eyes, brother, error, told, kind
):
    def fail():
        with pytest.raises(type(error)), Ranks(rank=0, world_size=2, watch=eyes[0]).together():
            raise error

    rank_0 = Thread(target=fail)
    rank_0.start()
    with pytest.raises(NmtError) as found:
        verdict(eyes[1])
    rank_0.join()
    assert brother.poll() is None
    assert type(found.value) is kind and str(found.value).endswith(f"stopped with an error: {told}")


def test_a_brother_that_is_frozen_is_killed(eyes, brother):
    eyes[0]._over.set()  # its pulse stops
    with pytest.raises(MachineError, match=r"rank 0 .* is dead or frozen"):
        verdict(eyes[1])
    assert brother.wait(10) == -9
