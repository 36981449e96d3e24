"""Precisions that weights can be written in. Apart from what writes them, so that --help needs no torch."""

PRECISIONS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}  # our names, and torch's
