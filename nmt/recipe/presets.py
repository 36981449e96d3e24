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

# What `model.preset: auto` takes: the first row whose number is above that of the corpus' target tokens (EOS counted).
# A model that is too large for its corpus learns it by heart, and one that is too small for it wastes it. The rows are
# where practice changes: Multi30k (0.4 M tokens) is best with layers of width 128 and dropout 0.3 (Wu et al. 2021,
# "Good for misconceived reasons"); small corpora up to IWSLT (3.5 M) want shallow, narrow models and dropout of 0.3
# (Araabi and Monz 2020, "Optimizing Transformer for low-resource NMT"); WMT14 en-de (120 M) and en-fr (1 G) made base
# and big (Vaswani et al. 2017). Between those there is no law: the bounds are the middle, on a scale of factors.
AUTO: tuple[tuple[float, str, dict[str, Size]], ...] = (
    (1e6, "tiny", {"dropout": 0.3}),
    (1e7, "small", {"dropout": 0.3}),
    (3e7, "base", {"dropout": 0.2}),
    (4e8, "base", {"dropout": 0.1}),
    (float("inf"), "big", {"dropout": 0.1}),
)


def preset_for(n_token: int) -> tuple[str, dict[str, Size]]:
    """The preset for a corpus with this many target tokens, and the options that go with it."""
    return next((preset, options) for below, preset, options in AUTO if n_token < below)
