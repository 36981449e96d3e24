"""The order of what is asked of a GPU that records, shown on one that only listens."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from nmt.decoding.graph import Recorder
from nmt.errors import MachineError

RECORDING = ["wait", "{", "begin", "work", "end", "}", "wait", "replay"]


@pytest.fixture
def heard(monkeypatch):
    """What a GPU would hear, in its order."""
    heard: list[str] = []

    def says(word):
        return lambda *_, **__: heard.append(word)

    def end():
        heard.append("end")
        if "wrong" in heard:
            raise RuntimeError("the recording is void")

    @contextmanager
    def stream(_stream):
        heard.append("{")
        try:
            yield
        finally:
            heard.append("}")

    its_stream = SimpleNamespace(wait_stream=says("wait"))
    graph = SimpleNamespace(capture_begin=says("begin"), capture_end=end, replay=says("replay"))
    what = {"Stream": lambda: its_stream, "current_stream": lambda: its_stream, "CUDAGraph": lambda: graph}
    for name, one in {**what, "stream": stream, "graph_pool_handle": lambda: "pool"}.items():
        monkeypatch.setattr(torch.cuda, name, one)
    return heard


def test_work_is_done_then_recorded_then_replayed(heard):
    recorder = Recorder(torch.device("cuda"))
    for valid_for, key in (("here", "a"), ("here", "a"), ("here", "b"), ("here", "a"), ("elsewhere", "a")):
        recorder.keep_while(valid_for)
        recorder.run(key, lambda: heard.append("work"))
    assert heard == ["work", *RECORDING, "work", "replay", "work"]


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (RuntimeError("not permitted\nmore"), MachineError, "not permitted. Set decode.cuda_graphs"),
        (torch.OutOfMemoryError("too little"), torch.OutOfMemoryError, "too little"),
        (KeyboardInterrupt("stop"), KeyboardInterrupt, "stop"),
    ],
)
def test_what_goes_wrong_ends_the_recording(heard, error, expected, message):
    recorder = Recorder(torch.device("cuda"))

    def work():
        heard.append("wrong")
        raise error

    recorder.run("a", lambda: None)
    with pytest.raises(expected, match=message):
        recorder.run("a", work)
    assert heard == ["wait", "{", "begin", "wrong", "end", "}"]
