"""How the ranks of a run find each other, and that a wish to stop is heard meanwhile."""

from threading import Thread

import torch.distributed as dist

from nmt.training.ranks.roll_call import Stopped, meet
from nmt.training.starting.launch import launch


def test_a_rank_that_waits_for_the_others_can_be_stopped(recipe_of, monkeypatch):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    group = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port}
    for name, value in {**group, "TORCHELASTIC_USE_AGENT_STORE": "True"}.items():  # as torchrun does
        monkeypatch.setenv(name, str(value))
    recipe = recipe_of(train={"timeout": 5.0})
    assert launch(recipe, lambda: True) == "stopped"
    assert not recipe.run_folder.exists()


def test_rank_0_tells_who_has_confirmed_already_that_it_stops():
    """Its word decides: without it a rank would go on alone, or another wait for who is gone."""
    store, stopped = dist.HashStore(), []

    def rank(number, wants_stop):
        try:
            meet(store, number, 3, 20.0, lambda _: None, wants_stop)
        except Stopped:
            stopped.append(number)

    # Rank 2 comes, and stays away when it is to confirm.
    store.set("card/2", '{"rank": 2, "host": "", "process": 0, "parent": 0, "nonce": ""}')
    ranks = [
        Thread(target=rank, args=(0, lambda: store.check(["confirmed/1"]))),
        Thread(target=rank, args=(1, lambda: store.check(["confirmed/1"]))),
    ]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join(10)
    assert sorted(stopped) == [0, 1]


def test_a_wish_to_stop_that_comes_when_all_have_met_is_not_heard_here():
    store, met = dist.HashStore(), []

    def rank(number):
        met.append(len(meet(store, number, 2, 20.0, lambda _: None, lambda: store.check(["agreed"]))[1]))

    ranks = [Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join(10)
    assert met == [2, 2]
