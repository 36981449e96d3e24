"""Ways to break the models, and the tests that see them."""

from mutation import Mutation

MODELS = "nmt/models/transformer/Models.py"
INVARIANCE = "tests/training/test_invariance.py"
RECURRENT = "tests/models/test_recurrent.py"

MUTATIONS = (
    Mutation(
        "positions swapped in pairs",
        "nmt/models/transformer/Modules.py",
        "angle = torch.arange(first, first + n).double()",
        "angle = (torch.arange(first, first + n) ^ 1).double()",
        "tests/models/test_upstream.py tests/models/test_modules.py",
    ),
    Mutation(
        "causal mask dropped",
        MODELS,
        "return torch.ones(1, n, n, dtype=torch.bool, device=seq.device).tril()",
        "return torch.ones(1, n, n, dtype=torch.bool, device=seq.device)",
        "tests/models/test_masks.py",
    ),
    Mutation(
        "padding mask forgotten",
        MODELS,
        "return (seq != pad_idx).unsqueeze(-2)",
        "return (seq == seq).unsqueeze(-2)",
        INVARIANCE + " -k company",
    ),
    Mutation(
        "padding changes the state of an LSTM",
        "nmt/models/lstm/Modules.py",
        "gates = (-_SHUT, _SHUT, 0.0, 0.0) if self.is_lstm else (0.0, _SHUT, 0.0)",
        "gates = (-_SHUT, 0.0, 0.0, 0.0) if self.is_lstm else (0.0, _SHUT, 0.0)",
        RECURRENT,
    ),
    Mutation(
        "the last state is that of the padding",
        "nmt/models/lstm/Modules.py",
        "last[0] = torch.where(n_real > 0, output.gather(1, end).squeeze(1), before[0].squeeze(0))",
        "pass",
        RECURRENT,
    ),
    Mutation(
        "an encoder that reads backward does not turn back",
        "nmt/models/lstm/Layers.py",
        "outputs.append(_at(output, mirror))",
        "outputs.append(output)",
        RECURRENT,
    ),
    Mutation(
        "what was found is not fed to the next step",
        "nmt/models/lstm/Models.py",
        'state.per_row["found"] = found.flatten(0, 1)',
        'state.per_row["found"] = torch.zeros_like(found.flatten(0, 1))',
        RECURRENT,
    ),
    Mutation(
        "logit scale forgotten while decoding",
        MODELS,
        "return self.logits(hidden.flatten(0, 1), state)",
        "return self.trg_word_prj(hidden.flatten(0, 1))",
        "tests/models/test_steps.py",
    ),
    Mutation(
        "logit scale forgotten in short lists",
        "nmt/models/base.py",
        "-1, hidden.size(-1)) * self.logit_scale",
        "-1, hidden.size(-1))",
        "tests/models/test_narrow.py",
    ),
    Mutation(
        "what is not on a short list counts as nothing",
        "nmt/models/narrow.py",
        "(means + log_other.unsqueeze(1)).logsumexp(-1, keepdim=True)",
        "(means + log_other.unsqueeze(1)).logsumexp(-1, keepdim=True) - 99.0",
        "tests/models/test_narrow.py",
    ),
    Mutation(
        "output matrix not tied",
        MODELS,
        "self.trg_word_prj.weight = self.decoder.trg_word_emb.weight",
        "self.trg_word_prj.weight = nn.Parameter(self.decoder.trg_word_emb.weight.detach().clone())",
        "tests/models/test_build.py -k tied",
    ),
    Mutation(
        "units far out cut off in 8 bits",
        "nmt/models/int8_ranges.py",
        "max(least, beyond * _tail(numbers))",
        "least",
        "tests/models/test_int8.py -k far_out",
    ),
    Mutation(
        "what attention found in the source spread as what it found in the target",
        "nmt/models/int8.py",
        "_means_of_values(layer.enc_attn, of_source)",
        "_means_of_values(layer.enc_attn, norm)",
        "tests/models/test_int8.py -k attention_multiplies",
    ),
    Mutation(
        "means of values taken for those of other heads",
        "nmt/models/int8.py",
        ".repeat_interleave(share, 0)",
        ".repeat(share, 1)",
        "tests/models/test_int8.py -k attention_multiplies",
    ),
)
