"""The order of what is asked of a GPU that records, shown on one that only listens."""

from contextlib import contextmanager

import pytest
import torch

from nmt.decoding.graph import Recorder
from nmt.errors import MachineError


@pytest.fixture
def heard(monkeypatch):
    """What a GPU would hear, in its order."""
    heard: list[str] = []

    class Stream:
        def wait_stream(self, _other):
            heard.append("wait")

    class Graph:
        def capture_begin(self, pool, capture_error_mode):
            assert (pool, capture_error_mode) == ("pool", "thread_local")
            heard.append("begin")

        def capture_end(self):
            heard.append("end")
            if "wrong" in heard:
                raise RuntimeError("the recording is void")

        def replay(self):
            heard.append("replay")

    @contextmanager
    def stream(_stream):
        heard.append("{")
        try:
            yield
        finally:
            heard.append("}")

    for name, what in {
        "Stream": Stream,
        "CUDAGraph": Graph,
        "current_stream": Stream,
        "stream": stream,
        "graph_pool_handle": lambda: "pool",
    }.items():
        monkeypatch.setattr(torch.cuda, name, what)
    return heard


def test_work_is_done_then_recorded_then_replayed(heard):
    recorder = Recorder(torch.device("cuda"))
    recorder.keep_while("here")
    for key in "aabab":
        recorder.run(key, lambda key=key: heard.append(key))
    recording = ["wait", "{", "begin", "a", "end", "}", "wait", "replay"]
    second = [one.replace("a", "b") if one == "a" else one for one in recording]
    assert heard == ["a", *recording, "b", "replay", *second]
    recorder.keep_while("elsewhere")
    heard.clear()
    recorder.run("a", lambda: heard.append("a"))
    assert heard == ["a"]


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (
            RuntimeError("operation not permitted\nmore"),
            MachineError,
            "operation not permitted. Set decode.cuda_graphs",
        ),
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
