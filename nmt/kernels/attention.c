/* Attention of sentences, and its gradient: products, a softmax and dropout in the cache of a core.

   Heads are read where the projections wrote them, into fp32. A sentence is one thread's alone, so nothing depends on
   the number of threads. */

#include "numbers.h"

int lanes(void) { return LANES; }

#define TALL (LANES == 16 ? 8 : 6) /* rows of a tile, whose sums and what they grow by have to fit the registers */

/* c (m x n, n_vector vectors wide) = a · b, or c + a · b. An element of a is at a[row · a_row + column · a_column]. */
ALWAYS void tile(int n_row, int n_vector, float *c, int64_t c_row, const float *a, int64_t a_row, int64_t a_column,
                 const float *b, int64_t b_row, int64_t depth, int add) {
  vector sum[TALL][2]; /* of constant size, or it would not be kept in registers */
  for (int r = 0; r < n_row; r++)
    for (int v = 0; v < n_vector; v++) sum[r][v] = add ? *(vector *)(c + r * c_row + v * LANES) : (vector){0};
  for (int64_t k = 0; k < depth; k++) {
    vector line[2];
    for (int v = 0; v < n_vector; v++) line[v] = *(const vector *)(b + k * b_row + v * LANES);
    for (int r = 0; r < n_row; r++)
      for (int v = 0; v < n_vector; v++) sum[r][v] += a[r * a_row + k * a_column] * line[v];
  }
  for (int r = 0; r < n_row; r++)
    for (int v = 0; v < n_vector; v++) *(vector *)(c + r * c_row + v * LANES) = sum[r][v];
}

/* The product of a (m x depth) and b (depth x n), n a multiple of LANES. Rows are shared out among few tiles evenly: one of
   a row or two would wait for its additions. */
static void multiply(float *c, int64_t c_row, const float *a, int64_t a_row, int64_t a_column, const float *b,
                     int64_t b_row, int64_t m, int64_t n, int64_t depth, int add) {
  const int64_t n_tile = PARTS(m, TALL);
  for (int64_t j = 0; j < n;) {
    int two = n - j >= 2 * LANES;
    for (int64_t t = 0; t < n_tile; t++) {
      const int64_t i = t * m / n_tile;
      float *to = c + i * c_row + j;
      const float *from = a + i * a_row;
#define TILE(rows)                                                               \
  case rows:                                                                     \
    if (two)                                                                     \
      tile(rows, 2, to, c_row, from, a_row, a_column, b + j, b_row, depth, add); \
    else                                                                         \
      tile(rows, 1, to, c_row, from, a_row, a_column, b + j, b_row, depth, add); \
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
    j += two ? 2 * LANES : LANES;
  }
}

/* (n_row, n_column) -> (n_column, n_row), multiples of LANES both. */
static void transpose(float *restrict to, int64_t to_row, const float *restrict from, int64_t from_row, int64_t n_row,
                      int64_t n_column) {
  for (int64_t r = 0; r < n_row; r += LANES)
    for (int64_t c = 0; c < n_column; c += 4) turn_four(to + c * to_row + r, to_row, from + r * from_row + c, from_row);
}

/* A tensor (sentences, heads, places, columns): where it begins, and how far apart its parts are but for columns. */
typedef struct {
  void *data;
  int64_t sentence, head, place;
} heads;

/* n_sentence sentences; n_head heads of n_query queries, of which each n_head / n_group share keys and values.
   Or they lie end to end in one row: then n_query and n_key are those of the longest. */
typedef struct {
  int64_t n_sentence, n_head, n_group, n_query, n_key, d_k, d_v;
  const uint8_t *mask; /* 1 where a query may look; how far apart sentences and queries are, which may share it: 0 */
  int64_t mask_sentence, mask_query;
  const int32_t *query_start, *key_start; /* end to end: where sentences begin, and where the last ends; there is no mask */
  int causal;                             /* end to end: whether queries look at their own place and back alone */
  float scale;
  uint64_t seed;
  int n_drop; /* of 65,536; 0 for no dropout */
  float scale_up;
  int half, n_thread;
} shape;

/* One side of a sentence: places n, of which `before` are in other sentences before it. start: see `shape`. */
typedef struct {
  int64_t n, before, sentence;
  int end_to_end;
} side;

ALWAYS side side_of(const int32_t *start, int64_t n, int64_t sentence) {
  if (start) return (side){start[sentence + 1] - start[sentence], start[sentence], sentence, 1};
  return (side){n, sentence * n, sentence, 0};
}

/* Where a sentence begins in a tensor, and how far on from one of its n_head heads the next begins, if need be that of the
   next sentence. */
ALWAYS int64_t first_of(const heads *x, side of) { return of.end_to_end ? of.before * x->place : of.sentence * x->sentence; }
ALWAYS int64_t next_of(const heads *x, side of, int64_t head, int64_t n_head) {
  return head + 1 < n_head ? x->head : (of.end_to_end ? of.n * x->place : x->sentence) - head * x->head;
}

/* One head of a sentence as (places, wide) fp32, with zeros behind the width, and behind the places, up to LANES. */
static void read_head(float *to, int64_t wide, const heads *from, side of, int64_t head, int64_t n_head, int64_t width,
                      int half) {
  const int64_t begin = first_of(from, of) + head * from->head, next = next_of(from, of, head, n_head);
  for (int64_t place = 0; place < of.n; place++, to += wide) {
    int64_t first = begin + place * from->place;
    prefetch(from->data, first + next, width, half, 0);
    load(to, from->data, first, width, half);
    for (int64_t i = width; i < wide; i++) to[i] = 0.0f;
  }
  memset(to, 0, 4 * (up(of.n) - of.n) * wide);
}

static void write_head(const heads *to, const float *from, int64_t wide, side of, int64_t head, int64_t n_head,
                       int64_t width, int half) {
  const int64_t begin = first_of(to, of) + head * to->head, next = next_of(to, of, head, n_head);
  for (int64_t place = 0; place < of.n; place++, from += wide) {
    int64_t first = begin + place * to->place;
    prefetch(to->data, first + next, width, half, 1);
    store(to->data, first, from, width, half);
  }
}

/* Which weights of a head are dropped: a row of n_key decisions for each query. Returns how far apart rows are. */
static int64_t decide(uint16_t *decision, side query, int64_t n_key, int64_t head, const shape *s) {
  const int64_t most = (s->n_key + 3) / 4, n_word = (n_key + 3) / 4, first = query.before * s->n_head + head * query.n;
  draw(decision, s->seed, first * most, query.n * n_word);
  return 4 * n_word;
}

/* The softmax of a row of n scores, a multiple of LANES: 0 where `seen` has no bits; all 0 if that is nowhere. */
static void softmax(float *x, const int32_t *seen, int sees, int64_t n, float scale) {
  if (!sees) {
    memset(x, 0, 4 * n);
    return;
  }
  vector top = {0}, sum = {0};
  top += -INFINITY;
  const integers hidden = (integers)top;
  for (int64_t i = 0; i < n; i += LANES) {
    integers in = *(const integers *)(seen + i);
    vector z = (vector)(((integers)(*(vector *)(x + i) * scale) & in) | (hidden & ~in));
    *(vector *)(x + i) = z;
    integers above = z > top;
    top = (vector)(((integers)z & above) | ((integers)top & ~above));
  }
  float most = largest(top);
  for (int64_t i = 0; i < n; i += LANES) {
    vector p = exponentials(*(vector *)(x + i) - most);
    sum += p;
    *(vector *)(x + i) = p;
  }
  float share = 1.0f / total_of(sum); /* one that sees something has at least exp(0), or NaN */
  for (int64_t i = 0; i < n; i += LANES) *(vector *)(x + i) *= share;
}

/* A row of a mask as all bits or none. Returns whether anything is seen. */
static int read_mask(int32_t *restrict seen, const uint8_t *restrict mask, int64_t n) {
  int32_t any = 0;
#pragma omp simd reduction(| : any)
  for (int64_t i = 0; i < n; i++) {
    seen[i] = -(int32_t)mask[i];
    any |= mask[i];
  }
  return any;
}

/* Which keys the queries of a sentence see, as rows of all bits or none, and whether a row has any. Returns how far apart
   the rows of queries are: 0 where all see the same. */
static int64_t read_masks(int32_t *seen, int *sees, int64_t wide, const shape *s, side query, side key) {
  const int each = s->mask ? s->mask_query != 0 : s->causal;
  for (int64_t t = 0; t < (each ? query.n : 1); t++) {
    int32_t *row = seen + t * wide;
    if (s->mask) {
      sees[t] = read_mask(row, s->mask + key.sentence * s->mask_sentence + t * s->mask_query, key.n) != 0;
      continue;
    }
    int64_t n = s->causal && t + 1 < key.n ? t + 1 : key.n;
    for (int64_t i = 0; i < wide; i++) row[i] = -(i < n);
    sees[t] = n > 0;
  }
  return each;
}

/* Room for a thread, in numbers of fp32. Returns NULL, and the caller says so, where there is none. */
static float *room(int64_t n) { return aligned_alloc(64, (4 * n + 63) / 64 * 64); }

/* out = dropout(softmax(scale · q kT)) v. weight: (n_sentence, n_head, n_query, up(n_key)) fp32, before dropout.
   Returns 0, or 1 where there is no memory. */
int attend(const shape *s, const heads *q, const heads *k, const heads *v, const heads *out, float *weight) {
  const int64_t n_head = s->n_head, n_share = n_head / s->n_group, d_k = s->d_k, d_v = s->d_v;
  const int64_t most_q = up(s->n_query), wide = up(s->n_key), wide_k = up(d_k), wide_v = up(d_v);
  int failed = 0;
#pragma omp parallel num_threads(s->n_thread) reduction(| : failed)
  {
    float *query = room((most_q + wide) * (wide_k + wide_v) + wide_k * wide + 3 * most_q * wide + most_q);
    float *found = query + most_q * wide_k, *key = found + most_q * wide_v, *value = key + wide * wide_k;
    float *turned = value + wide * wide_v, *used = turned + wide_k * wide;
    uint16_t *decision = (uint16_t *)(used + most_q * wide);
    int32_t *seen = (int32_t *)(decision + 2 * most_q * wide), *sees = seen + most_q * wide;
    failed = !query;
    if (query) memset(seen, 0, 4 * most_q * wide);
#pragma omp for schedule(static)
    for (int64_t b = 0; b < s->n_sentence; b++) {
      if (failed) continue;
      const side asks = side_of(s->query_start, s->n_query, b), looks_at = side_of(s->key_start, s->n_key, b);
      const int64_t n_query = asks.n, n_key = looks_at.n, in_use = up(n_key);
      const int64_t each = read_masks(seen, sees, wide, s, asks, looks_at);
      for (int64_t head = 0; head < n_head; head++) {
        float *p = weight + (asks.before * n_head + head * n_query) * wide;
        read_head(query, wide_k, q, asks, head, n_head, d_k, s->half);
        if (head % n_share == 0) {
          read_head(key, wide_k, k, looks_at, head / n_share, s->n_group, d_k, s->half);
          read_head(value, wide_v, v, looks_at, head / n_share, s->n_group, d_v, s->half);
          transpose(turned, wide, key, wide_k, in_use, wide_k);
        }
        multiply(p, wide, query, wide_k, 1, turned, wide, n_query, in_use, d_k, 0);
        for (int64_t t = 0; t < n_query; t++)
          softmax(p + t * wide, seen + each * t * wide, sees[each * t], in_use, s->scale);
        if (s->n_drop) {
          const int64_t apart = decide(decision, asks, n_key, head, s);
          for (int64_t t = 0; t < n_query; t++)
            for (int64_t i = 0; i < in_use; i += LANES)
              *(vector *)(used + t * wide + i) =
                  kept(*(vector *)(p + t * wide + i), decision + t * apart + i, s->n_drop, s->scale_up);
        }
        multiply(found, wide_v, s->n_drop ? used : p, wide, 1, value, wide_v, n_query, wide_v, n_key, 0);
        write_head(out, found, wide_v, asks, head, n_head, d_v, s->half);
      }
    }
    free(query);
  }
  return failed;
}

/* The gradients of q, k and v by that of `out`. */
int attend_backward(const shape *s, const heads *q, const heads *k, const heads *v, const heads *d_out,
                    const float *weight, const heads *d_q, const heads *d_k_out, const heads *d_v_out) {
  const int64_t n_head = s->n_head, n_share = n_head / s->n_group, d_k = s->d_k, d_v = s->d_v;
  const int64_t most_q = up(s->n_query), wide = up(s->n_key), wide_k = up(d_k), wide_v = up(d_v);
  int failed = 0;
#pragma omp parallel num_threads(s->n_thread) reduction(| : failed)
  {
    float *key = room(2 * wide * (wide_k + wide_v) + most_q * (2 * wide_k + wide_v) + wide_v * wide + 3 * most_q * wide);
    float *value = key + wide * wide_k, *d_key = value + wide * wide_v, *d_value = d_key + wide * wide_k;
    float *query = d_value + wide * wide_v, *d_query = query + most_q * wide_k, *d_found = d_query + most_q * wide_k;
    float *turned = d_found + most_q * wide_v, *used = turned + wide_v * wide, *d_score = used + most_q * wide;
    uint16_t *decision = (uint16_t *)(d_score + most_q * wide);
    failed = !key;
#pragma omp for schedule(static)
    for (int64_t b = 0; b < s->n_sentence; b++) {
      if (failed) continue;
      const side asks = side_of(s->query_start, s->n_query, b), looks_at = side_of(s->key_start, s->n_key, b);
      const int64_t n_query = asks.n, n_key = looks_at.n, in_use = up(n_key);
      for (int64_t head = 0; head < n_head; head++) {
        const int64_t group = head / n_share, again = head % n_share != 0;
        const float *p = weight + (asks.before * n_head + head * n_query) * wide;
        read_head(query, wide_k, q, asks, head, n_head, d_k, s->half);
        read_head(d_found, wide_v, d_out, asks, head, n_head, d_v, s->half);
        if (!again) {
          read_head(key, wide_k, k, looks_at, group, s->n_group, d_k, s->half);
          read_head(value, wide_v, v, looks_at, group, s->n_group, d_v, s->half);
          transpose(turned, wide, value, wide_v, in_use, wide_v);
        }
        multiply(d_score, wide, d_found, wide_v, 1, turned, wide, n_query, in_use, d_v, 0);
        const int64_t apart = s->n_drop ? decide(decision, asks, n_key, head, s) : 0;
        for (int64_t t = 0; t < n_query; t++) {
          const float *of_row = p + t * wide;
          float *d_row = d_score + t * wide, *used_row = used + t * wide;
          for (int64_t i = 0; s->n_drop && i < in_use; i += LANES) {
            const uint16_t *of_these = decision + t * apart + i;
            *(vector *)(used_row + i) = kept(*(const vector *)(of_row + i), of_these, s->n_drop, s->scale_up);
            *(vector *)(d_row + i) = kept(*(vector *)(d_row + i), of_these, s->n_drop, s->scale_up);
          }
          vector sum = {0};
          for (int64_t i = 0; i < in_use; i += LANES) sum += *(const vector *)(of_row + i) * *(vector *)(d_row + i);
          const float mean = total_of(sum);
          for (int64_t i = 0; i < in_use; i += LANES)
            *(vector *)(d_row + i) = *(const vector *)(of_row + i) * (*(vector *)(d_row + i) - mean) * s->scale;
        }
        multiply(d_value, wide_v, s->n_drop ? used : p, 1, wide, d_found, wide_v, n_key, wide_v, n_query, again);
        multiply(d_query, wide_k, d_score, wide, 1, key, wide_k, n_query, wide_k, n_key, 0);
        multiply(d_key, wide_k, d_score, 1, wide, query, wide_k, n_key, wide_k, n_query, again);
        write_head(d_q, d_query, wide_k, asks, head, n_head, d_k, s->half);
        if ((head + 1) % n_share == 0) {
          write_head(d_k_out, d_key, wide_k, looks_at, group, s->n_group, d_k, s->half);
          write_head(d_v_out, d_value, wide_v, looks_at, group, s->n_group, d_v, s->half);
        }
      }
    }
    free(key);
  }
  return failed;
}

/* -- a few queries, of a search ------------------------------------------------------------------------------------- */

/* The sum of products of n numbers of two rows, of which the second is as the tensor has it. */
ALWAYS float dot(const float *a, const void *b, int64_t first, int64_t n, int half) {
  vector sum = {0};
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) sum += *(const vector *)(a + i) * vector_at(b, first + i, half);
  float found = total_of(sum);
  for (; i < n; i++) found += a[i] * number_at(b, first + i, half);
  return found;
}

/* out = softmax(scale · q kT) v without a gradient, where queries are few and see few of the keys: those that are hidden,
   such as the words of other hypotheses, are not looked at. Returns 0, or 1 where there is no memory. */
int look_up(const shape *s, const heads *q, const heads *k, const heads *v, const heads *out) {
  const int64_t n_share = s->n_head / s->n_group, n_query = s->n_query, n_key = s->n_key, d_k = s->d_k, d_v = s->d_v;
  int failed = 0;
#pragma omp parallel num_threads(s->n_thread) reduction(| : failed)
  {
    const int64_t wide = up(n_key);
    float *score = room(2 * wide + up(d_k) + up(d_v)), *query = score + wide, *found = query + up(d_k);
    int32_t *seen = (int32_t *)(found + up(d_v));
    failed = !score;
#pragma omp for schedule(static)
    for (int64_t task = 0; task < s->n_sentence * s->n_head; task++) {
      if (failed) continue;
      const int64_t b = task / s->n_head, head = task % s->n_head, group = head / n_share;
      const int64_t first_k = b * k->sentence + group * k->head, first_v = b * v->sentence + group * v->head;
      /* What the next head will see are most likely the same places. Waiting for them was most of the time. */
      const int64_t next = task + 1 < s->n_sentence * s->n_head ? task + 1 : task;
      const int64_t next_b = next / s->n_head, next_group = next % s->n_head / n_share;
      const int64_t next_k = next_b * k->sentence + next_group * k->head;
      const int64_t next_v = next_b * v->sentence + next_group * v->head;
      for (int64_t t = 0; t < n_query; t++) {
        const uint8_t *mask = s->mask + b * s->mask_sentence + t * s->mask_query;
        int64_t n = 0;
        float top = -INFINITY, total = 0.0f;
        load(query, q->data, b * q->sentence + head * q->head + t * q->place, d_k, s->half);
        for (int64_t i = 0; i < n_key; i++)
          if (mask[i]) {
            prefetch(k->data, next_k + i * k->place, d_k, s->half, 0);
            prefetch(v->data, next_v + i * v->place, d_v, s->half, 0);
            seen[n] = i;
            score[n] = s->scale * dot(query, k->data, first_k + i * k->place, d_k, s->half);
            top = score[n] > top ? score[n] : top;
            n++;
          }
        for (int64_t i = n; i < up(n); i++) score[i] = -INFINITY;
        for (int64_t i = 0; i < n; i += LANES) {
          vector p = exponentials(*(vector *)(score + i) - top);
          *(vector *)(score + i) = p;
          total += total_of(p);
        }
        const float share = n ? 1.0f / total : 0.0f;
        int64_t c = 0;
        for (; c + LANES <= d_v; c += LANES) {
          vector sum = {0};
          for (int64_t i = 0; i < n; i++) sum += score[i] * vector_at(v->data, first_v + seen[i] * v->place + c, s->half);
          *(vector *)(found + c) = sum * share;
        }
        for (; c < d_v; c++) {
          float sum = 0.0f;
          for (int64_t i = 0; i < n; i++) sum += score[i] * number_at(v->data, first_v + seen[i] * v->place + c, s->half);
          found[c] = sum * share;
        }
        store(out->data, b * out->sentence + head * out->head + t * out->place, found, d_v, s->half);
      }
    }
    free(score);
  }
  return failed;
}
