"""How the ranks of a run find each other, and that a wish to stop is heard meanwhile."""

import torch.distributed as dist

from nmt.training.launch import launch


def test_a_rank_that_waits_for_the_others_can_be_stopped(recipe_of, monkeypatch):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    group = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port}
    for name, value in {**group, "TORCHELASTIC_USE_AGENT_STORE": "True"}.items():  # as torchrun does
        monkeypatch.setenv(name, str(value))
    recipe = recipe_of(train={"timeout": 5.0})
    assert launch(recipe, lambda: True) == "stopped"
    assert not recipe.run_folder.exists()
