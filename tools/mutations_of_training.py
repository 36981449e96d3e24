"""Ways to break training: loss, update, what resuming needs, plan, checkpoints; and the tests that see them."""

from mutation import Mutation

LOSS = "nmt/training/losses/loss.py"
ENGINE = "nmt/training/engine.py"
KEEPER = "nmt/training/keeper.py"
CHECKPOINT = "nmt/checkpoint.py"
PLAN = "nmt/data/batching/plan.py"
RESUME = "tests/training/test_resume.py"
CHAIN = "tests/training/test_exact_resume.py -k stops_within"
RATES = "tests/training/test_exact_resume.py -k rate_of_an_update"
INVARIANCE = "tests/training/test_invariance.py"
EVERY_PAIR = "tests/training/test_every_pair.py -k one_process"
TWO_PROCESSES = "tests/training/test_parallel.py -k losses_and_weights"

MUTATIONS = (
    # the loss
    Mutation(
        "a compiled pass is taken for one of our kernels",
        LOSS,
        "if compiled and not own else",
        "if compiled else",
        "tests/training/losses/test_loss.py -k fill_up",
    ),
    Mutation(
        "logit scale forgotten in the loss",
        "nmt/training/losses/objective.py",
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
        "gradient[self._pad_idx] = 0.0",
        "gradient[self._pad_idx] += 0.0",
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
        "tests/training/losses/test_loss.py",
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
        "nmt/training/due.py",
        "update = state.update + 1\n",
        "update = state.update + state.n_skipped + 1\n",
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
        "_seed(item.seed, self.model.device)",
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
        "the next replay of a CUDA graph writes over the gradients of the one before",
        "nmt/training/engine.py",
        "parameter.grad = saved[parameter] = parameter.grad.clone()",
        "saved[parameter] = parameter.grad",
        "tests/training/test_compiled.py",
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
        "self.teller.updates(self.state, self.meter, self.passed)\n",
        "self.teller.updates(self.state, self.meter, self.passed)\n            self.model.eval()\n",
        RESUME + " -k watching",
    ),
    Mutation(
        "the time of a validation counts as schedule",
        "nmt/training/budget.py",
        "state.planned_at, state.planned_share = state.wall_seconds, min(1.0, share)",
        "pass",
        "tests/training/test_budget.py",
    ),
    Mutation(
        "tags of sources are dropped as words",
        "nmt/training/losses/dropping.py",
        "dropped &= seq < first_tag",
        "pass",
        "tests/training/test_regularize.py -k tags",
    ),
    Mutation(
        "the best by another metric is deleted",
        "nmt/training/keeper.py",
        "scores = {state.best_before: 0.0}",
        "pass",
        "tests/training/test_history.py",
    ),
    Mutation(
        "weights can be read by their owner alone",
        "nmt/checkpoint.py",
        "shutil.copymode(beside / STATE, beside / name)",
        "pass",
        "tests/test_checkpoint.py -k umask",
    ),
    # the start
    Mutation(
        "a training that compiles nothing imports torch's compiler",
        "nmt/training/optimizers/without_compiler.py",
        "zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)",
        "zero_grad = torch.optim.Optimizer.zero_grad",
        "tests/training/optimizers/test_without_compiler.py",
    ),
    Mutation(
        "ranks import torch's compiler when others wait for them",
        "nmt/training/parallel.py",
        "    import_compiler()  # as ddp",
        "    # as ddp",
        "tests/training/test_training_compiler.py",
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
        "tests/data/batching/test_plan.py",
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
    # another end
    Mutation(
        "the end of a shorter run left in a longer one",
        "nmt/training/trainer.py",
        "due.forget_end(self.state, self.recipe)",
        "pass",
        "tests/training/test_longer.py -k begun_for",
    ),
    Mutation(
        "a run that goes by its length made longer",
        "nmt/training/starting/claim.py",
        "may_end=not bound",
        "may_end=True",
        "tests/training/test_longer.py -k stays",
    ),
    # beside other work
    Mutation(
        "threads that stay awake beside other work",
        "nmt/threads/waiting.py",
        "ctypes.c_uint(n_core()), ctypes.c_uint(0)",
        "ctypes.c_uint(1), ctypes.c_uint(0)",
        "tests/threads/test_waiting.py -k surplus",
    ),
    Mutation(
        "and sleep on after it",
        "nmt/threads/waiting.py",
        "            self._enough.set()\n",
        "",
        "tests/threads/test_waiting.py -k surplus",
    ),
    Mutation(
        "or when the training is over",
        "nmt/threads/waiting.py",
        "    surplus.set(False)\n",
        "",
        "tests/threads/test_waiting.py -k when_it_is_over",
    ),
)
