"""Where the kernels in Triton are tested: on a GPU, or without one in Triton's interpreter if that is installed."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # which Triton looks at when it is imported


@pytest.fixture
def device():
    if torch.cuda.is_available():
        return torch.device("cuda")
    pytest.importorskip("triton", reason="neither a GPU nor Triton, which can do without")
    return torch.device("cpu")
