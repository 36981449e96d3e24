"""Device of the tests of kernels in Triton: a GPU, or else Triton's interpreter if it is installed."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is imported


@pytest.fixture
def device():
    if torch.cuda.is_available():
        return torch.device("cuda")
    pytest.importorskip("triton", reason="neither a GPU nor Triton, which can do without")
    return torch.device("cpu")
