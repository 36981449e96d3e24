"""Named sizes of the Transformer: what `model.preset` stands for.

A preset is a mapping of options of `ModelConfig`; an option written beside it wins. Nothing here is a default.
"""

Size = int | float

PRESETS: dict[str, dict[str, Size]] = {
    "tiny": {"n_enc_layer": 2, "n_dec_layer": 2, "d_model": 128, "d_inner": 512, "n_head": 4},
    "small": {"n_enc_layer": 3, "n_dec_layer": 3, "d_model": 256, "d_inner": 1024, "n_head": 4},
    "base": {"n_enc_layer": 6, "n_dec_layer": 6, "d_model": 512, "d_inner": 2048, "n_head": 8},
    "big": {"n_enc_layer": 6, "n_dec_layer": 6, "d_model": 1024, "d_inner": 4096, "n_head": 16, "dropout": 0.3},
}
