"""Ways to break the kernels of our own, and the tests that see them."""

from mutation import Mutation

NUMBERS = "nmt/native/numbers.h"
PASSES = "nmt/native/passes.c"
ATTENTION = "nmt/native/attention.c"
NORMS = "nmt/native/norms.c"
TILES = "nmt/native/tiles.c"
WIDENED = "tests/native/test_bf16_in_fp32.py"
HALVES = "nmt/native/half_products.c"
IN_EITHER = "nmt/native/halves.h"  # tiles, or registers
OF_HALVES = "tests/native/test_half_products.py"
PANELS = "nmt/native/panels.c"
SPARSE = "nmt/native/sparse.c"
SAMPLED = "nmt/native/sampled.c"
BYTES = "nmt/native/bytes.c"
IN_TILES = "tests/native/test_products.py -k in_tiles"
GRADIENTS = "tests/native/test_products.py -k gradient"
IN_PANELS = "tests/native/test_products.py -k in_panels"
ZEROS = "tests/native/test_products.py -k zeros"
WANTED = "tests/native/test_products.py -k where"
PRODUCTS = "nmt/native/products.c"
OF_PRODUCTS = "nmt/native/products.h"
MANY = "tests/native/test_products.py -k many"
IN_BYTES = "tests/native/test_bytes.py"
NATIVE = "tests/native/test_native_kernels.py"
NORM_TESTS = "tests/native/test_native_norms.py"

MUTATIONS = (
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
        "instructions that the processor has not",
        PRODUCTS,
        "  return 1;\n#else\n  return 0;\n#endif\n}\n",
        "  return 0;\n#else\n  return 1;\n#endif\n}\n",
        WIDENED,
    ),
    Mutation(
        "a widened product not put where it is wanted",
        "nmt/native/products.py",
        "found.to(a.dtype) if out is None else out.copy_(found)",
        "found.to(a.dtype)",
        WIDENED,
    ),
    Mutation(
        "the ReLU's mask of a widened gradient lost",
        "nmt/native/products.py",
        "product_where(widened(a), widened(b), widened(kept))",
        "product_where(widened(a), widened(b), widened(kept) + 1)",
        WIDENED,
    ),
    Mutation(
        "a run goes on in other panels",
        "nmt/training/starting/launch.py",
        'for key in ("kernels", "panels")',
        'for key in ("kernels", "kernels")',
        "tests/training/test_precision.py",
    ),
    Mutation(
        "slow panels taken",
        "nmt/training/precision.py",
        "if panels := in_panels > _NEARLY * fp32:",
        "if panels := in_panels > 0:",
        "tests/training/test_precision.py",
    ),
    Mutation(
        "validation in bf16 where torch is slow",
        "nmt/training/precision.py",
        'self.name == "bf16" and self.kernels and products',
        "False and products",
        "tests/training/test_precision.py",
    ),
    Mutation(
        "the gradient of a weight left turned",
        "nmt/native/products.py",
        "        narrow is x,\n",
        "        0,\n",
        GRADIENTS,
    ),
    Mutation(
        "long sums of a weight's gradient begun anew",
        "nmt/native/weight_gradient.c",
        "k ? sums : NULL,",
        "NULL,",
        GRADIENTS,
    ),
    Mutation("half of a step of bf16 left out", IN_EITHER, "_tile_dpbf16ps(3, 5, 7);", ";", f"{OF_HALVES} -k in_tiles"),
    Mutation(
        "half of a pair of vectors left out",
        IN_EITHER,
        "sum[i][1] = _mm512_dpbf16_ps(sum[i][1], x, right);",
        ";",
        f"{OF_HALVES} -k in_registers",
    ),
    Mutation(
        "a panel that is not whole read as one that is",
        HALVES,
        "left = room, apart = LINE, of_step = OF_STEP;",
        "left = room;",
        f"{OF_HALVES} -k in_registers",
    ),
    Mutation(
        "the last strip of a panel where the one before is",
        HALVES,
        "panel, row + 2 * STRIP,",
        "panel, row + STRIP,",
        f"{OF_HALVES} -k in_registers",
    ),
    Mutation(
        "the next rows of bf16 laid out in part",
        HALVES,
        "to_lay * (j + 1) / n_panel",
        "to_lay * j / n_panel",
        f"{OF_HALVES} -k in_tiles",
    ),
    Mutation("a second weight laid over the first", HALVES, " + first / STEP + step)", " + step)", OF_HALVES),
    Mutation("sums of columns of each panel alone", HALVES, "if (found.sums && row % ROWS)", "if (0)", OF_HALVES),
    Mutation("what is not kept of bf16 let through", HALVES, "if (task->kept) x[t] =", "if (0) x[t] =", OF_HALVES),
    Mutation("NaN of bf16 hidden by a ReLU", HALVES, "& ~(x[t] < 0.0f)", "& (x[t] > 0.0f)", OF_HALVES),
    Mutation("the bias of a layer in bf16 left out", HALVES, "if (task->bias) found", "if (0) found", OF_HALVES),
    Mutation(
        "the smallest pieces of numbers left out of a product",
        TILES,
        "UPPER(0); FIRST(2); UPPER_FIRST; SECOND(2); UPPER_SECOND; LOWER(0); LOWER_FIRST; LOWER_SECOND;",
        "UPPER(0); LOWER(0);",
        IN_TILES,
    ),
    Mutation("long sums of tiles begun anew", TILES, "plus = k > 0 || to->add", "plus = to->add", IN_TILES),
    Mutation("the second half of tiles' sums begun anew", TILES, "n_step - s, s > 0,", "n_step - s, 0,", IN_TILES),
    Mutation("many products of the first factor", PRODUCTS, "a + matrix * n_row * n_sum", "a", MANY),
    Mutation("nothing below the diagonal", PRODUCTS, "(symmetric ? n_matrix : 0)", "0", MANY),
    Mutation("too little above the diagonal", PRODUCTS, "symmetric ? end : n_row", "symmetric ? column : n_row", MANY),
    Mutation("the first of several rows copied", PANELS, "left + i * of_row, 4 * depth", "left, 4 * depth", IN_PANELS),
    Mutation("long sums of panels begun anew", PANELS, "plus = k > 0 || to->add", "plus = to->add", IN_PANELS),
    Mutation("sums without zeros begun anew", SPARSE, "n, d > 0,", "n, 0,", ZEROS),
    Mutation("long sums without zeros begun anew", SPARSE, "add = k > 0 || to->add", "add = to->add", ZEROS),
    Mutation("a bias added with each part of a sparse sum", SPARSE, "last ? to->bias : NULL", "to->bias", ZEROS),
    Mutation("the last columns without a bias", SPARSE, "if (to->bias) x += to->bias[c];", "", ZEROS),
    Mutation("the last columns past a ReLU", SPARSE, "to->relu && x < 0.0f ? 0.0f : x", "x", ZEROS),
    Mutation("the last columns not added", SPARSE, "to->add ? sums[c] + out[c] : sums[c]", "sums[c]", ZEROS),
    Mutation("NaN taken for a zero", OF_PRODUCTS, "THERE _CMP_NEQ_UQ", "THERE _CMP_NEQ_OQ", ZEROS),
    Mutation("zeros looked for where there are few", SPARSE, "MANY 0.75", "MANY 2.0", ZEROS),
    Mutation("zeros never left out", SPARSE, "MANY 0.75", "MANY 0.0", ZEROS),
    Mutation("zeros looked for in few rows", SPARSE, "FEWEST 64", "FEWEST 1", ZEROS),
    Mutation("two rows without zeros wanted", SPARSE, "NEARLY 0.95", "NEARLY 0.0", ZEROS),
    Mutation("parts of wanted numbers begun anew", SAMPLED, "n_sum, n_near, 1);", "n_sum, n_near, 0);", WANTED),
    Mutation("NaN not wanted", OF_PRODUCTS, "THERE _CMP_NEQ_UQ", "THERE _CMP_NEQ_OQ", WANTED),
    Mutation("the last of four not made", SAMPLED, "PARTS(which - begin, 4)", "(which - begin) / 4", WANTED),
    Mutation(
        "sums of the first rows for all", SAMPLED, "parts + row / ROWS * n_col + column", "parts + column", WANTED
    ),
    Mutation("all made where little is wanted", SAMPLED, "MANY 0.45", "MANY 0.0", WANTED),
    Mutation("little made where much is wanted", SAMPLED, "MANY 0.45", "MANY 2.0", WANTED),
    Mutation(
        "the last part of the rows not summed", NUMBERS, "part < n_part", "part + 1 < n_part", NATIVE + " -k summed"
    ),
    Mutation("the rest of a matrix not turned", PASSES, "UP_TO(r + LANES, end)", "r", NATIVE + " -k turned"),
    Mutation("the first strip taken for all", SPARSE, "RIGHT(d, s), b, c + FIRST(s)", "RIGHT(d, s), b, c", ZEROS),
    Mutation(
        "a bias added with each part of a sum",
        PANELS,
        "bias = last ? to->bias : NULL",
        "bias = to->bias",
        "tests/native/test_products.py -k bias",
    ),
    Mutation(
        "rows of panels read as if none lay side by side", PANELS, "a.dense ? a.stride : 1,", "a.stride,", IN_PANELS
    ),
    Mutation(
        "a panel that is laid out found elsewhere",
        PANELS,
        "PANEL * k + column * depth",
        "PANEL * k + column",
        IN_PANELS,
    ),
    Mutation(
        "a product written over its neighbours", PANELS, "place = n < PANEL ? part : out", "place = out", IN_PANELS
    ),
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
        "nmt/native/products.py",
        "column_sums(out, kept)",
        "column_sums(out)",
        "tests/models/test_fused_linear.py",
    ),
    Mutation(
        "the last four numbers of a panel of bytes left out",
        BYTES,
        "k < WHOLE(n_sum, GROUP); k += GROUP / 2",
        "k < n_sum; k += GROUP / 2",
        IN_BYTES,
    ),
    Mutation("states of more than 7 bits", BYTES, "_mm256_set1_ps(MOST)", "_mm256_set1_ps(255)", IN_BYTES),
    Mutation("what is no number hidden in bytes", BYTES, "gap += y - y;", "gap += 0.0f * (vector){0};", IN_BYTES),
    Mutation(
        "states of each thread read from the first row",
        BYTES,
        "known ? known + r * stride : mine",
        "known ? known : mine",
        IN_BYTES,
    ),
    Mutation(
        "fours of weights too large for 16 bits",
        "nmt/models/int8_products.py",
        "_FOUR = 256.0",
        "_FOUR = 300.0",
        "tests/models/test_int8_products.py",
    ),
)
