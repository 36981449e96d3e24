"""Ways to break the search for a translation, and the tests that see them."""

from mutation import Mutation

MODELS = "nmt/models/transformer/Models.py"
BEAM = "nmt/decoding/search/beam.py"
FIXED = "tests/decoding/search/test_fixed_search.py"
RULES = "tests/decoding/constraints/test_rules.py"

MUTATIONS = (
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
        "tests/decoding/search/test_beam.py tests/models/test_steps.py",
    ),
    Mutation(
        "past of hypotheses not reordered with the beam",
        "nmt/models/base.py",
        "self.ancestry.index_select(0, rows)",
        "self.ancestry.index_select(0, rows.sort().values)",
        "tests/models/test_steps.py",
    ),
    Mutation(
        "sentences that are read some at a time take the places of others",
        MODELS,
        "row += len(rows)",
        "row += 0",
        "tests/models/test_steps.py",
    ),
    Mutation(
        "a phrase that is there is lost to a letter",
        "nmt/decoding/constraints/required.py",
        "if len(phrase):",
        "if False:",
        RULES + " -k rather",
    ),
    Mutation(
        "a phrase does not begin with the space it needs",
        "nmt/decoding/constraints/phrases.py",
        'if room[0] and self.bytes[usual[0]] == b" ":',
        "if False:",
        RULES + " -k rather",
    ),
    Mutation(
        "a term is asked of every piece of a line",
        "nmt/decoding/constraints/request.py",
        "for at, to in places if start <= at and to <= end",
        "for at, to in places",
        "tests/decoding/test_long_lines.py",
    ),
    Mutation(
        "length penalty without the end mark",
        BEAM,
        "how.divisor(live.max_len.new_tensor(n_token))",
        "how.divisor(live.max_len.new_tensor(n_token - 1))",
        "tests/decoding/search/test_beam.py",
    ),
    Mutation(
        "search stops too early",
        BEAM,
        "how.divisor(live.max_len + 1)",
        "how.divisor(live.max_len.new_tensor(1))",
        "tests/decoding/search/test_beam.py",
    ),
    Mutation(
        "search ends though a better hypothesis goes on",
        BEAM,
        "done &= best_live / divisor <= worst",
        "pass",
        "tests/decoding/search/test_beam.py",
    ),
    Mutation(
        "in fixed shapes, sentences that are done are searched on",
        "nmt/decoding/search/fixed_table.py",
        "score.copy_(kept.score.masked_fill(done.unsqueeze(1), -torch.inf))",
        "score.copy_(kept.score)",
        FIXED,
    ),
    Mutation(
        "a search in fixed shapes looks at what the one before has written",
        "nmt/decoding/search/fixed_state.py",
        "shape, torch.bool)[0].zero_()",
        "shape, torch.bool)[0]",
        FIXED,
    ),
    Mutation(
        "in fixed shapes, where a sentence's hypotheses have looked does not move with it",
        "nmt/decoding/search/fixed_state.py",
        "self.ancestry = self._close_rows(self.ancestry, gaps)",
        "self.ancestry = self.ancestry[: gaps.n * self._n_row]",
        FIXED,
    ),
    Mutation(
        "in fixed shapes, hypotheses are made of a part of what was sent",
        "nmt/decoding/search/fixed_search.py",
        "self._sent.insert(0, (sentences[n:], {name: note[n:] for name, note in notes.items()}))",
        "pass",
        FIXED,
    ),
    Mutation(
        "in fixed shapes, a cache that is added is one of those that are there",
        "nmt/decoding/search/places.py",
        "self.all[:-1].copy_(old)",
        "self.all[1:].copy_(old)",
        FIXED,
    ),
    Mutation(
        "a step with more room is replayed from a recording with less",
        "nmt/decoding/search/fixed_search.py",
        "(self._how, len(self._sentence), self._n_src, self._table.room)",
        "(self._how, len(self._sentence), self._n_src)",
        FIXED,
    ),
    Mutation(
        "in fixed shapes, sentences that go on are not moved into the gaps",
        "nmt/models/gaps.py",
        "return which.index_copy_(0, gap, late)",
        "return which",
        FIXED,
    ),
    Mutation(
        "in fixed shapes, what a sentence has looked at does not move with it",
        "nmt/decoding/search/fixed_state.py",
        "pile.close(gaps)",
        "pile.all = pile.all[:, : gaps.n]",
        FIXED,
    ),
    Mutation(
        "recordings outlive the memory that they read",
        "nmt/decoding/search/recording.py",
        "self._recordings.clear()",
        "pass",
        FIXED,
    ),
    Mutation(
        "the beam forgets hypotheses that have a part of a phrase",
        "nmt/decoding/constraints/rules.py",
        "return best_of(every, -turn, n)",
        "return best_of(every, every.score, n)",
        RULES,
    ),
    Mutation(
        "a phrase is found within a longer word",
        "nmt/decoding/constraints/phrases.py",
        "_is_letter(before) or (before",
        "(before",
        RULES,
    ),
    Mutation(
        "a translation may end before it has what is required",
        "nmt/decoding/constraints/rules.py",
        "logits[:, self._eos].masked_fill_(self._required.lacking().flatten(), -torch.inf)",
        "pass",
        RULES,
    ),
    Mutation(
        "rules not reordered with the beam",
        "nmt/decoding/constraints/required.py",
        "state = self._state.gather(1, parent[self._sentence])",
        "state = self._state",
        RULES,
    ),
    Mutation(
        "sums made by how long the others of a batch are",
        "nmt/models/written_out.py",
        "if in_search and isinstance(mask, Tensor)",
        "if isinstance(mask, Tensor)",
        "tests/decoding/search/test_search_in_kernels.py",
    ),
)
