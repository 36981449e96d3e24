/* Attention and its gradient: products, softmax and dropout of one sentence in the cache of a core.

   Heads are read from the layout of the projections into fp32. Each sentence is computed by one thread, so results do not
   depend on the number of threads. */

#include "numbers.h"

int lanes(void) { return LANES; }

#define TILE_ROWS (LANES == 16 ? 8 : 6) /* rows of a tile: its accumulators and operands have to fit into the registers */

/* c (n_row rows of n_vector vectors) = a · b, or c + a · b if add. Element (r, k) of a is at a[r · a_stride + k · a_step]. */
INLINE void multiply_tile(int n_row, int n_vector, float *c, int64_t c_stride, const float *a, int64_t a_stride,
                          int64_t a_step, const float *b, int64_t b_stride, int64_t depth, int add) {
  vector acc[TILE_ROWS][2]; /* constant size, so that the compiler keeps it in registers */
  for (int r = 0; r < n_row; r++)
    for (int v = 0; v < n_vector; v++) acc[r][v] = add ? *(vector *)(c + r * c_stride + v * LANES) : (vector){0};
  for (int64_t k = 0; k < depth; k++) {
    vector b_row[2];
    for (int v = 0; v < n_vector; v++) b_row[v] = *(const vector *)(b + k * b_stride + v * LANES);
    for (int r = 0; r < n_row; r++)
      for (int v = 0; v < n_vector; v++) acc[r][v] += a[r * a_stride + k * a_step] * b_row[v];
  }
  for (int r = 0; r < n_row; r++)
    for (int v = 0; v < n_vector; v++) *(vector *)(c + r * c_stride + v * LANES) = acc[r][v];
}

/* c (m x n) = a (m x depth) · b (depth x n), or c + a · b. n: a multiple of LANES. Rows are divided evenly among the tiles: a
   tile of one or two rows would stall on the latency of its additions. */
static void multiply(float *c, int64_t c_stride, const float *a, int64_t a_stride, int64_t a_step, const float *b,
                     int64_t b_stride, int64_t m, int64_t n, int64_t depth, int add) {
  const int64_t n_tile = CEIL_DIV(m, TILE_ROWS);
  for (int64_t j = 0; j < n;) {
    int two_vectors = n - j >= 2 * LANES;
    for (int64_t t = 0; t < n_tile; t++) {
      const int64_t i = t * m / n_tile;
      float *c_tile = c + i * c_stride + j;
      const float *a_tile = a + i * a_stride;
#define TILE(rows)                                                                                     \
  case rows:                                                                                           \
    if (two_vectors)                                                                                   \
      multiply_tile(rows, 2, c_tile, c_stride, a_tile, a_stride, a_step, b + j, b_stride, depth, add); \
    else                                                                                               \
      multiply_tile(rows, 1, c_tile, c_stride, a_tile, a_stride, a_step, b + j, b_stride, depth, add); \
    break;
      switch ((t + 1) * m / n_tile - i) {
#if LANES == 16
        TILE(8)
        TILE(7)
#endif
        TILE(6)
        TILE(5)
        TILE(4)
        TILE(3)
        TILE(2)
        TILE(1)
      }
    }
    j += two_vectors ? 2 * LANES : LANES;
  }
}

/* A tensor (sentences, heads, positions, columns): address, and strides in numbers; columns are contiguous. */
typedef struct {
  void *data;
  int64_t sentence, head, place;
} heads;

/* n_sentence sentences; n_head query heads of n_query queries; n_head / n_group of them share a key/value head. Packed:
   sentences are concatenated in one row; n_query and n_key are those of the longest sentence. */
typedef struct {
  int64_t n_sentence, n_head, n_group, n_query, n_key, d_k, d_v;
  const uint8_t *mask; /* 1 where a query may look; strides of sentences and queries, 0 if they share it */
  int64_t mask_sentence, mask_query;
  const int32_t *query_start, *key_start; /* packed: start of each sentence, and end of the last; no mask */
  int causal;                             /* packed: each query sees its own position and those before */
  float scale;
  uint64_t seed;
  int n_drop; /* of 65,536; 0 for no dropout */
  float scale_up;
  int half, n_thread;
} shape;

/* The queries or keys of a sentence: n positions, after `start` of other sentences. starts: of queries or keys in `shape`. */
typedef struct {
  int64_t n, start, sentence;
  int packed;
} sequence;

INLINE sequence sequence_of(const int32_t *starts, int64_t n, int64_t sentence) {
  if (starts) return (sequence){starts[sentence + 1] - starts[sentence], starts[sentence], sentence, 1};
  return (sequence){n, sentence * n, sentence, 0};
}

/* Offset of a sentence in a tensor, and distance from one of its n_head heads to the next, maybe in the next sentence. */
INLINE int64_t start_of(const heads *x, sequence seq) { return seq.packed ? seq.start * x->place : seq.sentence * x->sentence; }
INLINE int64_t next_head_offset(const heads *x, sequence seq, int64_t head, int64_t n_head) {
  return head + 1 < n_head ? x->head : (seq.packed ? seq.n * x->place : x->sentence) - head * x->head;
}

/* Read one head of a sentence as (positions, stride) fp32, padded with zeros to `stride` columns and padded(n) positions. */
static void read_head(float *to, int64_t stride, const heads *from, sequence seq, int64_t head, int64_t n_head, int64_t width,
                      int half) {
  const int64_t base = start_of(from, seq) + head * from->head, to_next = next_head_offset(from, seq, head, n_head);
  for (int64_t position = 0; position < seq.n; position++, to += stride) {
    int64_t offset = base + position * from->place;
    prefetch(from->data, offset + to_next, width, half, 0);
    load(to, from->data, offset, width, half);
    for (int64_t i = width; i < stride; i++) to[i] = 0.0f;
  }
  memset(to, 0, 4 * (padded(seq.n) - seq.n) * stride);
}

static void write_head(const heads *to, const float *from, int64_t stride, sequence seq, int64_t head, int64_t n_head,
                       int64_t width, int half) {
  const int64_t base = start_of(to, seq) + head * to->head, to_next = next_head_offset(to, seq, head, n_head);
  for (int64_t position = 0; position < seq.n; position++, from += stride) {
    int64_t offset = base + position * to->place;
    prefetch(to->data, offset + to_next, width, half, 1);
    store(to->data, offset, from, width, half);
  }
}

/* Draw the random numbers for the dropout of one head: a row of n_key for each query. Returns the stride of rows. */
static int64_t draw_dropout(uint16_t *draws, sequence queries, int64_t n_key, int64_t head, const shape *s) {
  const int64_t max_word = (s->n_key + 3) / 4, n_word = (n_key + 3) / 4, first = queries.start * s->n_head + head * queries.n;
  draw(draws, s->seed, first * max_word, queries.n * n_word);
  return 4 * n_word;
}

/* Softmax of a row of n scores, n a multiple of LANES: 0 where mask is 0; all 0 if the whole mask is. */
static void softmax(float *score, const int32_t *mask, int any_visible, int64_t n, float scale) {
  if (!any_visible) {
    memset(score, 0, 4 * n);
    return;
  }
  const vector minus_infinity = (vector){0} - INFINITY;
  vector max = minus_infinity, sum = {0};
  for (int64_t i = 0; i < n; i += LANES) {
    const vector z = blend(*(const integers *)(mask + i), *(vector *)(score + i) * scale, minus_infinity);
    *(vector *)(score + i) = z;
    max = blend(z > max, z, max);
  }
  float row_max = reduce_max(max);
  for (int64_t i = 0; i < n; i += LANES) {
    vector p = exponentials(*(vector *)(score + i) - row_max);
    sum += p;
    *(vector *)(score + i) = p;
  }
  float inverse_sum = 1.0f / reduce_add(sum); /* a visible key adds at least exp(0), or NaN */
  for (int64_t i = 0; i < n; i += LANES) *(vector *)(score + i) *= inverse_sum;
}

/* Expand a row of a mask to all bits or none. Returns nonzero if any key is visible. */
static int read_mask(int32_t *restrict bits, const uint8_t *restrict mask, int64_t n) {
  int32_t any = 0;
#pragma omp simd reduction(| : any)
  for (int64_t i = 0; i < n; i++) {
    bits[i] = -(int32_t)mask[i];
    any |= mask[i];
  }
  return any;
}

/* Write the masks of a sentence as rows of all bits or none, and any_visible of each row. Returns the distance in rows from
   one query to the next: 0 if all queries share one row. */
static int64_t read_masks(int32_t *bits, int *any_visible, int64_t stride, const shape *s, sequence queries, sequence keys) {
  const int per_query = s->mask ? s->mask_query != 0 : s->causal;
  for (int64_t t = 0; t < (per_query ? queries.n : 1); t++) {
    int32_t *row = bits + t * stride;
    if (s->mask) {
      any_visible[t] = read_mask(row, s->mask + keys.sentence * s->mask_sentence + t * s->mask_query, keys.n) != 0;
      continue;
    }
    int64_t n_visible = s->causal && t + 1 < keys.n ? t + 1 : keys.n;
    for (int64_t i = 0; i < stride; i++) row[i] = -(i < n_visible);
    any_visible[t] = n_visible > 0;
  }
  return per_query;
}

/* Allocate scratch memory of a thread for n fp32 numbers. Returns NULL if there is no memory; the caller reports it. */
static float *allocate(int64_t n) { return aligned_alloc(64, (4 * n + 63) / 64 * 64); }

/* out = dropout(softmax(scale · q kT)) v. weight: (n_sentence, n_head, n_query, padded(n_key)) fp32, before dropout. Returns
   0, or 1 if there is no memory. */
int attend(const shape *s, const heads *q, const heads *k, const heads *v, const heads *out, float *weight) {
  const int64_t n_head = s->n_head, n_share = n_head / s->n_group, d_k = s->d_k, d_v = s->d_v;
  const int64_t max_q = padded(s->n_query), max_k = padded(s->n_key), pad_k = padded(d_k), pad_v = padded(d_v);
  int failed = 0;
#pragma omp parallel num_threads(s->n_thread) reduction(| : failed)
  {
    float *query = allocate((max_q + max_k) * (pad_k + pad_v) + pad_k * max_k + 3 * max_q * max_k + max_q);
    float *context = query + max_q * pad_k, *key = context + max_q * pad_v, *value = key + max_k * pad_k;
    float *key_t = value + max_k * pad_v, *dropped = key_t + pad_k * max_k;
    uint16_t *draws = (uint16_t *)(dropped + max_q * max_k);
    int32_t *mask = (int32_t *)(draws + 2 * max_q * max_k), *any_visible = mask + max_q * max_k;
    failed = !query;
    if (query) memset(mask, 0, 4 * max_q * max_k);
#pragma omp for schedule(static)
    for (int64_t b = 0; b < s->n_sentence; b++) {
      if (failed) continue;
      const sequence queries = sequence_of(s->query_start, s->n_query, b), keys = sequence_of(s->key_start, s->n_key, b);
      const int64_t n_query = queries.n, n_key = keys.n, padded_key = padded(n_key);
      const int64_t per_query = read_masks(mask, any_visible, max_k, s, queries, keys);
      for (int64_t head = 0; head < n_head; head++) {
        float *p = weight + (queries.start * n_head + head * n_query) * max_k;
        read_head(query, pad_k, q, queries, head, n_head, d_k, s->half);
        if (head % n_share == 0) {
          read_head(key, pad_k, k, keys, head / n_share, s->n_group, d_k, s->half);
          read_head(value, pad_v, v, keys, head / n_share, s->n_group, d_v, s->half);
          transpose(key_t, max_k, key, pad_k, padded_key, pad_k);
        }
        multiply(p, max_k, query, pad_k, 1, key_t, max_k, n_query, padded_key, d_k, 0);
        for (int64_t t = 0; t < n_query; t++)
          softmax(p + t * max_k, mask + per_query * t * max_k, any_visible[per_query * t], padded_key, s->scale);
        if (s->n_drop) {
          const int64_t draw_stride = draw_dropout(draws, queries, n_key, head, s);
          for (int64_t t = 0; t < n_query; t++)
            for (int64_t i = 0; i < padded_key; i += LANES)
              *(vector *)(dropped + t * max_k + i) =
                  dropout_vector(*(vector *)(p + t * max_k + i), draws + t * draw_stride + i, s->n_drop, s->scale_up);
        }
        multiply(context, pad_v, s->n_drop ? dropped : p, max_k, 1, value, pad_v, n_query, pad_v, n_key, 0);
        write_head(out, context, pad_v, queries, head, n_head, d_v, s->half);
      }
    }
    free(query);
  }
  return failed;
}

/* Gradients of q, k and v from that of `out`. Returns 0, or 1 if there is no memory. */
int attend_backward(const shape *s, const heads *q, const heads *k, const heads *v, const heads *d_out,
                    const float *weight, const heads *d_q, const heads *d_k_out, const heads *d_v_out) {
  const int64_t n_head = s->n_head, n_share = n_head / s->n_group, d_k = s->d_k, d_v = s->d_v;
  const int64_t max_q = padded(s->n_query), max_k = padded(s->n_key), pad_k = padded(d_k), pad_v = padded(d_v);
  int failed = 0;
#pragma omp parallel num_threads(s->n_thread) reduction(| : failed)
  {
    float *key = allocate(2 * max_k * (pad_k + pad_v) + max_q * (2 * pad_k + pad_v) + pad_v * max_k + 3 * max_q * max_k);
    float *value = key + max_k * pad_k, *d_key = value + max_k * pad_v, *d_value = d_key + max_k * pad_k;
    float *query = d_value + max_k * pad_v, *d_query = query + max_q * pad_k, *d_context = d_query + max_q * pad_k;
    float *value_t = d_context + max_q * pad_v, *dropped = value_t + pad_v * max_k, *d_score = dropped + max_q * max_k;
    uint16_t *draws = (uint16_t *)(d_score + max_q * max_k);
    failed = !key;
#pragma omp for schedule(static)
    for (int64_t b = 0; b < s->n_sentence; b++) {
      if (failed) continue;
      const sequence queries = sequence_of(s->query_start, s->n_query, b), keys = sequence_of(s->key_start, s->n_key, b);
      const int64_t n_query = queries.n, n_key = keys.n, padded_key = padded(n_key);
      for (int64_t head = 0; head < n_head; head++) {
        const int64_t group = head / n_share, add = head % n_share != 0;
        const float *p = weight + (queries.start * n_head + head * n_query) * max_k;
        read_head(query, pad_k, q, queries, head, n_head, d_k, s->half);
        read_head(d_context, pad_v, d_out, queries, head, n_head, d_v, s->half);
        if (!add) {
          read_head(key, pad_k, k, keys, group, s->n_group, d_k, s->half);
          read_head(value, pad_v, v, keys, group, s->n_group, d_v, s->half);
          transpose(value_t, max_k, value, pad_v, padded_key, pad_v);
        }
        multiply(d_score, max_k, d_context, pad_v, 1, value_t, max_k, n_query, padded_key, d_v, 0);
        const int64_t draw_stride = s->n_drop ? draw_dropout(draws, queries, n_key, head, s) : 0;
        for (int64_t t = 0; t < n_query; t++) {
          const float *p_row = p + t * max_k;
          float *d_row = d_score + t * max_k, *dropped_row = dropped + t * max_k;
          for (int64_t i = 0; s->n_drop && i < padded_key; i += LANES) {
            const uint16_t *row_draws = draws + t * draw_stride + i;
            *(vector *)(dropped_row + i) = dropout_vector(*(const vector *)(p_row + i), row_draws, s->n_drop, s->scale_up);
            *(vector *)(d_row + i) = dropout_vector(*(vector *)(d_row + i), row_draws, s->n_drop, s->scale_up);
          }
          vector sum = {0};
          for (int64_t i = 0; i < padded_key; i += LANES) sum += *(const vector *)(p_row + i) * *(vector *)(d_row + i);
          const float mean = reduce_add(sum);
          for (int64_t i = 0; i < padded_key; i += LANES)
            *(vector *)(d_row + i) = *(const vector *)(p_row + i) * (*(vector *)(d_row + i) - mean) * s->scale;
        }
        multiply(d_value, pad_v, s->n_drop ? dropped : p, 1, max_k, d_context, pad_v, n_key, pad_v, n_query, add);
        multiply(d_query, pad_k, d_score, max_k, 1, key, pad_k, n_query, pad_k, n_key, 0);
        multiply(d_key, pad_k, d_score, 1, max_k, query, pad_k, n_key, pad_k, n_query, add);
        write_head(d_q, d_query, pad_k, queries, head, n_head, d_k, s->half);
        if ((head + 1) % n_share == 0) {
          write_head(d_k_out, d_key, pad_k, keys, group, s->n_group, d_k, s->half);
          write_head(d_v_out, d_value, pad_v, keys, group, s->n_group, d_v, s->half);
        }
      }
    }
    free(key);
  }
  return failed;
}

/* -- few queries, in a search --------------------------------------------------------------------------------------- */

/* Dot product of n fp32 numbers and n numbers of a tensor from index `first` on. */
INLINE float dot(const float *a, const void *b, int64_t first, int64_t n, int half) {
  vector sum = {0};
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) sum += *(const vector *)(a + i) * vector_at(b, first + i, half);
  float total = reduce_add(sum);
  for (; i < n; i++) total += a[i] * number_at(b, first + i, half);
  return total;
}

/* out = softmax(scale · q kT) v without gradient, for few queries that see few of the keys: masked keys, such as those of
   other hypotheses, are not read. Returns 0, or 1 if there is no memory. */
int look_up(const shape *s, const heads *q, const heads *k, const heads *v, const heads *out) {
  const int64_t n_share = s->n_head / s->n_group, n_query = s->n_query, n_key = s->n_key, d_k = s->d_k, d_v = s->d_v;
  int failed = 0;
#pragma omp parallel num_threads(s->n_thread) reduction(| : failed)
  {
    const int64_t max_k = padded(n_key);
    float *score = allocate(2 * max_k + padded(d_k) + padded(d_v)), *query = score + max_k, *context = query + padded(d_k);
    int32_t *visible = (int32_t *)(context + padded(d_v));
    failed = !score;
#pragma omp for schedule(static)
    for (int64_t task = 0; task < s->n_sentence * s->n_head; task++) {
      if (failed) continue;
      const int64_t b = task / s->n_head, head = task % s->n_head, group = head / n_share;
      const int64_t k_offset = b * k->sentence + group * k->head, v_offset = b * v->sentence + group * v->head;
      /* The next head most likely sees the same positions. Prefetching them avoids stalls that took most of the time. */
      const int64_t next_task = task + 1 < s->n_sentence * s->n_head ? task + 1 : task;
      const int64_t next_b = next_task / s->n_head, next_group = next_task % s->n_head / n_share;
      const int64_t next_k_offset = next_b * k->sentence + next_group * k->head;
      const int64_t next_v_offset = next_b * v->sentence + next_group * v->head;
      for (int64_t t = 0; t < n_query; t++) {
        const uint8_t *mask = s->mask + b * s->mask_sentence + t * s->mask_query;
        int64_t n = 0;
        float max = -INFINITY, total = 0.0f;
        load(query, q->data, b * q->sentence + head * q->head + t * q->place, d_k, s->half);
        for (int64_t i = 0; i < n_key; i++)
          if (mask[i]) {
            prefetch(k->data, next_k_offset + i * k->place, d_k, s->half, 0);
            prefetch(v->data, next_v_offset + i * v->place, d_v, s->half, 0);
            visible[n] = i;
            score[n] = s->scale * dot(query, k->data, k_offset + i * k->place, d_k, s->half);
            max = score[n] > max ? score[n] : max;
            n++;
          }
        for (int64_t i = n; i < padded(n); i++) score[i] = -INFINITY;
        for (int64_t i = 0; i < n; i += LANES) {
          vector p = exponentials(*(vector *)(score + i) - max);
          *(vector *)(score + i) = p;
          total += reduce_add(p);
        }
        const float inverse_total = n ? 1.0f / total : 0.0f;
        int64_t c = 0;
        for (; c + LANES <= d_v; c += LANES) {
          vector sum = {0};
          for (int64_t i = 0; i < n; i++) sum += score[i] * vector_at(v->data, v_offset + visible[i] * v->place + c, s->half);
          *(vector *)(context + c) = sum * inverse_total;
        }
        for (; c < d_v; c++) {
          float sum = 0.0f;
          for (int64_t i = 0; i < n; i++) sum += score[i] * number_at(v->data, v_offset + visible[i] * v->place + c, s->half);
          context[c] = sum * inverse_total;
        }
        store(out->data, b * out->sentence + head * out->head + t * out->place, context, d_v, s->half);
      }
    }
    free(score);
  }
  return failed;
}
