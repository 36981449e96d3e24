"""Break the package on purpose, one small way at a time, and demand that a test turns red: python tools/mutate.py

Each mutation is applied to a copy of the tree, where the tests named with it are run. Prints one line a mutation;
exits with 1 if a test stayed green, if something other than a test failed, or if a text to replace is not there
exactly once. That last part is a test of its own (tests/test_tools.py), so that the list cannot rot.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
COPIED = ("nmt", "tests", "tools", "recipes", "pyproject.toml")
LONGEST = 300  # seconds; a test that hangs has seen the mutation too


class Mutation(NamedTuple):
    """A way to break one file. tests: what pytest is told, of which something must turn red."""

    name: str
    file: str
    old: str
    new: str
    tests: str


MODELS = "nmt/models/transformer/Models.py"
LOSS = "nmt/training/loss.py"
ENGINE = "nmt/training/engine.py"
KEEPER = "nmt/training/keeper.py"
CHECKPOINT = "nmt/checkpoint.py"
PLAN = "nmt/data/plan.py"
BEAM = "nmt/decoding/beam.py"
PASSES, ATTENTION, NORMS = "nmt/native/passes.c", "nmt/native/attention.c", "nmt/native/norms.c"
TILES = "nmt/native/tiles.c"

PRODUCTS = "tests/native/test_products.py"
RESUME = "tests/training/test_resume.py"
CHAIN = "tests/training/test_exact_resume.py -k stops_within"
RATES = "tests/training/test_exact_resume.py -k rate_of_an_update"
FIXED = "tests/decoding/test_fixed_search.py"
INVARIANCE = "tests/training/test_invariance.py"
EVERY_PAIR = "tests/training/test_every_pair.py -k one_process"
TWO_PROCESSES = "tests/training/test_parallel.py -k losses_and_weights"
RULES = "tests/decoding/test_rules.py"
RECURRENT = "tests/models/test_recurrent.py"
NATIVE, NORM_TESTS = "tests/native/test_native_kernels.py", "tests/native/test_native_norms.py"

MUTATIONS = (
    # the kernels
    Mutation(
        "dropout drawn anew in each block",
        PASSES,
        "draw(decision, seed, first / 4, BLOCK / 4);\n    load(here",
        "draw(decision, seed, 0, BLOCK / 4);\n    load(here",
        NATIVE,
    ),
    Mutation(
        "weights dropped otherwise in the gradient",
        ATTENTION,
        "kept(*(vector *)(d_row + i), of_these,",
        "kept(*(vector *)(d_row + i), of_these + 1,",
        NATIVE,
    ),
    Mutation(
        "gradient of shared keys overwritten",
        ATTENTION,
        "n_key, wide_k, n_query, again);",
        "n_key, wide_k, n_query, 0);",
        NATIVE,
    ),
    Mutation(
        "the future seen end to end", ATTENTION, "s->causal && t + 1 < key.n", "s->causal && t + 2 < key.n", NATIVE
    ),
    Mutation(
        "the gradient of a weight left turned",
        "nmt/native/products.py",
        "c_int(narrow is x),",
        "c_int(0),",
        PRODUCTS,
    ),
    Mutation(
        "long sums of a weight's gradient begun anew",
        "nmt/native/weight_gradient.c",
        "k ? sums : NULL,",
        "NULL,",
        PRODUCTS,
    ),
    Mutation(
        "the smallest pieces of numbers left out of a product",
        TILES,
        "LEFT(0); RIGHT(2); MULTIPLY; /*",
        "LEFT(0); /*",
        PRODUCTS,
    ),
    Mutation("long sums of tiles begun anew", TILES, "plus = k > 0 || to->add", "plus = to->add", PRODUCTS),
    Mutation("the second half of tiles' sums begun anew", TILES, "n_step - s, s > 0,", "n_step - s, 0,", PRODUCTS),
    Mutation(
        "a gradient that goes back past dropout",
        NORMS,
        "if (g->n_drop) found = kept(",
        "if (!g->d_x) found = kept(",
        NORM_TESTS,
    ),
    Mutation(
        "words of chance that two sentences end to end share",
        ATTENTION,
        "first = query.before * s->n_head + head * query.n;",
        "first = head * query.n;",
        NATIVE,
    ),
    Mutation(
        "the gradient past a norm forgotten",
        NORMS,
        "if (g->beside) found += vector",
        "if (0) found += vector",
        NORM_TESTS,
    ),
    Mutation("the mean left in the gradient of a norm", NORMS, "g->centred ? sum / n : 0.0f", "0.0f * sum", NORM_TESTS),
    Mutation(
        "columns that fit no vector left out of a norm's gradient",
        NORMS,
        "  for (; i < n; i++) {\n    float d = number_at(g->d,",
        "  for (; i < n - 1; i++) {\n    float d = number_at(g->d,",
        NORM_TESTS,
    ),
    Mutation(
        "variance taken from zero",
        NORMS,
        "sum_of(x, x_half, first, n, middle, 1)",
        "sum_of(x, x_half, first, n, 0.0f, 1)",
        NORM_TESTS,
    ),
    Mutation(
        "the gradient of a narrow copy kept narrow",
        "nmt/models/norms.py",
        "return passes.drop_add(d_out, past, 0, 0, 1.0, ctx.dtype), None",
        "return past, None",
        "tests/models/test_norms.py",
    ),
    Mutation(
        "numbers that fit no part left out of the norm of gradients",
        PASSES,
        "for (; i < end; i++) rest +=",
        "for (; i < end - 1; i++) rest +=",
        NATIVE,
    ),
    Mutation("hidden keys seen", ATTENTION, "seen[i] = -(int32_t)mask[i];", "seen[i] = -1;", NATIVE),
    Mutation(
        "columns that fit no vector left out of the softmax",
        PASSES,
        "for (int64_t j = 0; j < n; j += LANES) {\n        vector p",
        "for (int64_t j = 0; j + LANES <= n; j += LANES) {\n        vector p",
        NATIVE,
    ),
    Mutation(
        "not finite taken for far below",
        "nmt/native/numbers.h",
        "integers tiny = x < one * -87.0f;",
        "integers tiny = ~(x >= one * -87.0f);",
        NATIVE,
    ),
    Mutation(
        "a damaged library loaded",
        "nmt/native/compiler.py",
        "return _sum_of(content[:-_N_SUM]) == content[-_N_SUM:]",
        "return True",
        "tests/native/test_compiler.py",
    ),
    Mutation(
        "the gradient of a ReLU let through",
        "nmt/models/fused_linear.py",
        "passes.column_sums(d_hidden, hidden)",
        "passes.column_sums(d_hidden)",
        "tests/models/test_fused_linear.py",
    ),
    # the model
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
    # search
    Mutation(
        "every cached step at position 0",
        MODELS,
        "first=state.n_step)",
        "first=0)",
        "tests/models/test_steps.py",
    ),
    Mutation(
        "cache not reordered with the beam",
        "nmt/models/base.py",
        "tensor.index_select(0, rows)",
        "tensor.index_select(0, rows.sort().values)",
        "tests/decoding/test_beam.py tests/models/test_steps.py",
    ),
    Mutation(
        "past of hypotheses not reordered with the beam",
        "nmt/models/base.py",
        "self.ancestry.index_select(0, rows)",
        "self.ancestry.index_select(0, rows.sort().values)",
        "tests/models/test_steps.py",
    ),
    Mutation(
        "length penalty without the end mark",
        BEAM,
        "length_divisor(max_len.new_tensor(n_token), length_penalty, alpha)",
        "length_divisor(max_len.new_tensor(n_token - 1), length_penalty, alpha)",
        "tests/decoding/test_beam.py",
    ),
    Mutation(
        "search stops too early",
        BEAM,
        "length_divisor(max_len + 1, length_penalty, alpha)",
        "length_divisor(max_len.new_tensor(1), length_penalty, alpha)",
        "tests/decoding/test_beam.py",
    ),
    Mutation(
        "search ends though a better hypothesis goes on",
        BEAM,
        "done &= best_live / divisor <= worst",
        "pass",
        "tests/decoding/test_beam.py",
    ),
    Mutation(
        "in fixed shapes, sentences that are done are searched on",
        "nmt/decoding/fixed_search.py",
        "score.copy_(kept.score.masked_fill(done.unsqueeze(1), -torch.inf))",
        "score.copy_(kept.score)",
        FIXED,
    ),
    Mutation(
        "a search in fixed shapes looks at what the one before has written",
        "nmt/decoding/fixed_state.py",
        "self._n_slot), torch.bool).zero_()",
        "self._n_slot), torch.bool)",
        FIXED,
    ),
    Mutation(
        "a step with more room is replayed from a recording with less",
        "nmt/decoding/fixed_search.py",
        "(self._how, len(self._sentence), self._n_src, self._room)",
        "(self._how, len(self._sentence), self._n_src)",
        FIXED,
    ),
    Mutation(
        "recordings outlive the memory that they read",
        "nmt/decoding/recording.py",
        "self._recordings.clear()",
        "pass",
        FIXED,
    ),
    Mutation(
        "the beam forgets hypotheses that have a part of a phrase",
        "nmt/decoding/rules.py",
        "return best_of(every, -turn, n)",
        "return best_of(every, every.score, n)",
        RULES,
    ),
    Mutation(
        "a phrase is found within a longer word",
        "nmt/decoding/phrases.py",
        "and not (begins and is_letter)",
        "",
        RULES,
    ),
    Mutation(
        "a translation may end before it has what is required",
        "nmt/decoding/rules.py",
        "logits[:, self._eos].masked_fill_(self._required.lacking().flatten(), -torch.inf)",
        "pass",
        RULES,
    ),
    Mutation(
        "rules not reordered with the beam",
        "nmt/decoding/required.py",
        "state = self._state.gather(1, parent[self._sentence])",
        "state = self._state",
        RULES,
    ),
    # the loss
    Mutation(
        "logit scale forgotten in the loss",
        "nmt/training/objective.py",
        '"scale": scale,',
        '"scale": 1.0,',
        INVARIANCE + " -k search_sees",
    ),
    Mutation(
        "label smoothing gives mass to padding",
        LOSS,
        "weight.sum(0, dtype=exact) - weight[pad_idx]",
        "weight.sum(0, dtype=exact)",
        INVARIANCE + " -k search_sees",
    ),
    Mutation(
        "and only its gradient does",
        LOSS,
        "d_weight[self._pad_idx] += self._each * self._hidden",
        "d_weight[self._pad_idx] += 0.0",
        INVARIANCE + " -k finite",
    ),
    Mutation(
        "padding counts in the loss",
        LOSS,
        "rows = rows_of(gold != pad_idx, n_gold)",
        "rows = rows_of(gold == gold, n_gold)",
        INVARIANCE + " -k company",
    ),
    Mutation(
        "gradient without the logit scale",
        LOSS,
        "d_hidden *= scale",
        "d_hidden *= 1.0",
        "tests/training/test_loss.py",
    ),
    Mutation(
        "the device asked for what the batch knows",
        ENGINE,
        "n_gold=batch.n_gold,",
        "n_gold=None,",
        "tests/training/test_no_waiting.py",
    ),
    # an update
    Mutation(
        "mean of the means of batches",
        ENGINE,
        "weight = self.ranks.world_size / n_gold if item.counts else 0.0",
        "weight = self.ranks.world_size / item.batch.n_gold if item.counts else 0.0",
        "tests/training/test_accumulation.py",
    ),
    Mutation(
        "factor of the number of ranks dropped",
        ENGINE,
        "weight = self.ranks.world_size / n_gold if item.counts else 0.0",
        "weight = 1.0 / n_gold if item.counts else 0.0",
        TWO_PROCESSES,
    ),
    Mutation(
        "a repeated batch counts",
        ENGINE,
        "weight = self.ranks.world_size / n_gold if item.counts else 0.0",
        "weight = self.ranks.world_size / n_gold",
        "tests/training/test_every_pair.py -k two_processes",
    ),
    Mutation(
        "gradient not cleared after an update",
        "nmt/training/optim.py",
        "    optimizers.zero_grad()\n    return norm, finite",
        "    return norm, finite",
        RESUME + " -k adam",
    ),
    Mutation(
        "a gradient that is not finite is applied",
        "nmt/training/optim.py",
        "    if late or finite:\n",
        "    if True:\n",
        "tests/training/test_optim.py -k finite",
    ),
    Mutation(
        "learning rate counts skipped updates",
        "nmt/training/trainer.py",
        "recipe, update = self.recipe, self.state.update + 1",
        "recipe, update = self.recipe, self.state.update + self.state.n_skipped + 1",
        RATES,
    ),
    Mutation(
        "moving average young for ever",
        ENGINE,
        "decay = min(self.recipe.train.ema, (1 + update) / (10 + update))",
        "decay = (1 + update) / (10 + update)",
        "tests/training/test_exact_resume.py -k moving_average",
    ),
    # what resuming needs
    Mutation(
        "dropout not seeded for each batch",
        ENGINE,
        "torch.manual_seed(item.seed)",
        "None",
        RESUME + " -k adam",
    ),
    Mutation(
        "the same dropout in every update of an epoch",
        "nmt/training/state.py",
        "[seed, position.epoch, position.update, index]",
        "[seed, position.epoch, index]",
        "tests/training/test_exact_resume.py -k same_dropout",
    ),
    Mutation(
        "optimizer not restored",
        KEEPER,
        "engine.optimizers.load_state(engine.model, checkpoint.load_tensors(folder, checkpoint.OPTIMIZER))",
        "None",
        RESUME + " -k adam",
    ),
    Mutation(
        "moving average not restored",
        KEEPER,
        "part.copy_(laid_out_like(part, average[name]))",
        "None",
        CHAIN,
    ),
    Mutation(
        "loss scale not restored",
        KEEPER,
        "engine.scaler.load_state_dict(state.scaler)",
        "None",
        CHAIN,
    ),
    Mutation(
        "resumed at the beginning of the epoch",
        "nmt/training/state.py",
        'Position(state["epoch"], 0 if begun_in_other_batches(state, packed=packed) else state["update_in_epoch"])',
        'Position(state["epoch"], 0)',
        EVERY_PAIR,
    ),
    Mutation(
        "validation leaves dropout off",
        "nmt/training/validate.py",
        "model.train(training)",
        "None",
        RESUME + " -k watching",
    ),
    Mutation(
        "logging changes the model",
        "nmt/training/trainer.py",
        "**shown)\n",
        "**shown)\n        self.model.eval()\n",
        RESUME + " -k watching",
    ),
    # the plan
    Mutation(
        "the last pairs of an epoch lost",
        PLAN,
        "self._plan, self._order, self._rng = plan, order, rng",
        "self._plan, self._order, self._rng = plan, order[:-1], rng",
        EVERY_PAIR,
    ),
    Mutation(
        "the first update of a later epoch skipped",
        PLAN,
        "Position(position.epoch + 1, 0)",
        "Position(position.epoch + 1, 1)",
        EVERY_PAIR,
    ),
    Mutation(
        "pairs repeated",
        PLAN,
        "pool[by_length][moved]",
        "pool[by_length][moved // 2]",
        EVERY_PAIR,
    ),
    Mutation(
        "every epoch in the same order",
        PLAN,
        "np.random.default_rng([self.seed, epoch])",
        "np.random.default_rng([self.seed, 0])",
        "tests/data/test_plan.py",
    ),
    # checkpoints
    Mutation(
        "hashes of the manifest not checked",
        CHECKPOINT,
        'if digest != entry["sha256"]:',
        "if False:",
        "tests/test_checkpoint.py",
    ),
    Mutation(
        "saved without fsync",
        CHECKPOINT,
        "            sync_file(beside / name)\n",
        "            pass\n",
        "tests/test_checkpoint.py",
    ),
    Mutation(
        "committed by copying",
        CHECKPOINT,
        "os.replace(beside, folder)\n        sync_folder",
        "shutil.copytree(beside, folder)\n        sync_folder",
        "tests/test_checkpoint.py",
    ),
    Mutation(
        "the best checkpoint deleted",
        CHECKPOINT,
        "sorted(set(score_of) - set(newest) - set(best))",
        "sorted(set(score_of) - set(newest))",
        "tests/test_checkpoint.py",
    ),
    Mutation(
        "average over one too few",
        CHECKPOINT,
        "(tensor / count).to(dtypes[name])",
        "(tensor / max(1, count - 1)).to(dtypes[name])",
        "tests/test_checkpoint.py",
    ),
)


def complaint(mutation: Mutation, root: Path = ROOT) -> str:
    """What is wrong with a mutation as the tree is now; '' if it can be applied."""
    path = root / mutation.file
    if not path.is_file():
        return f"{mutation.name}: there is no {mutation.file}"
    n = path.read_text(encoding="utf-8").count(mutation.old)
    return "" if n == 1 else f"{mutation.name}: {n} times in {mutation.file}, not once: {mutation.old!r}"


def run_tests(tree: Path, arguments: str) -> int:
    """The exit status of pytest in a tree: 0 green, 1 red. A test that hangs is red."""
    files, _, keyword = arguments.partition(" -k ")
    selected = [*files.split(), *(["-k", keyword] if keyword else [])]
    # Bytecode is found again by time and size, which a mutation can leave alone.
    settings = {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *selected]
    try:
        done = subprocess.run(
            command, cwd=tree, env={**os.environ, **settings}, capture_output=True, timeout=LONGEST, check=False
        )
    except subprocess.TimeoutExpired:
        return 1
    return done.returncode


def main() -> None:
    """Apply every mutation, or those whose names hold a word."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("word", nargs="?", default="", help="only the mutations with this in their name")
    chosen = [mutation for mutation in MUTATIONS if parser.parse_args().word in mutation.name]
    if wrong := list(filter(None, map(complaint, chosen))):
        sys.exit("\n".join(wrong))
    n_wrong = 0
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        tree = Path(folder)
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copyfile(ROOT / name, tree / name)
        green: set[str] = set()
        for mutation in chosen:
            if mutation.tests not in green and (status := run_tests(tree, mutation.tests)):
                sys.exit(f"without any mutation pytest {mutation.tests} ends with {status}; it must be green")
            green.add(mutation.tests)
            path, begin = tree / mutation.file, time.perf_counter()
            whole = path.read_text(encoding="utf-8")
            path.write_text(whole.replace(mutation.old, mutation.new), encoding="utf-8", newline="\n")
            status = run_tests(tree, mutation.tests)
            path.write_text(whole, encoding="utf-8", newline="\n")
            found = {0: "GREEN", 1: "red"}.get(status, f"pytest ended with {status}")
            n_wrong += status != 1
            print(f"{found:6} {time.perf_counter() - begin:6.1f} s  {mutation.name}  [{mutation.tests}]", flush=True)
    print(f"{len(chosen)} mutations, {len(chosen) - n_wrong} seen by a test")
    sys.exit(n_wrong > 0)


if __name__ == "__main__":
    main()
