/* Attention of some query rows over one chunk of keys.
 *
 * Scores and weighted sums are tile products: 32 keys are packed like 32 outputs of a linear layer,
 * and the values of a chunk like a layer whose inputs are the keys. Chunks start at multiples of
 * BD_KEY_CHUNK and are folded in ascending order, and a key that a row does not see adds exactly
 * nothing, so a row's result depends only on its own query and on the keys it sees.
 */
#ifndef BD_ATTENTION_H
#define BD_ATTENTION_H

#include "scores.h"

typedef struct {
    uint16_t *operands; /* of the score products: packed keys or queries */
    uint16_t *values;   /* [dim_padded / 32][chunk / 2][2][16][2] */
    float *scores;      /* [rows][chunk] */
    uint16_t *weights;  /* [rows][chunk] */
} bd_scratch;

static size_t bd_attention_scratch(int dim_padded, int num_query_rows) {
    size_t rows = (size_t)num_query_rows;
    return (BD_KEY_CHUNK + bd_score_operand_rows(num_query_rows)) * (size_t)dim_padded *
               sizeof(uint16_t) +
           BD_KEY_CHUNK * rows * (sizeof(float) + sizeof(uint16_t));
}

static bd_scratch bd_lay_out_scratch(void *memory, int dim_padded, int num_query_rows) {
    bd_scratch s;
    s.operands = memory;
    s.values = s.operands + bd_score_operand_rows(num_query_rows) * (size_t)dim_padded;
    s.scores = (float *)(s.values + BD_KEY_CHUNK * dim_padded);
    s.weights = (uint16_t *)(s.scores + (ptrdiff_t)num_query_rows * BD_KEY_CHUNK);
    return s;
}

/* Keys a token sees: [first, last). */
BD_INLINE void bd_visible(const bd_queries *q, const bd_keys *keys, int token, int *first,
                          int *last) {
    int position = q->start + token;
    *first = q->window && position >= q->window ? position - q->window + 1 : 0;
    *last = keys->end;
    if (q->is_causal) {
        if (position + 1 < *last) *last = position + 1;
    } else if (q->window && *last - position > q->window) {
        *last = position + q->window;
    }
}

/* Softmax of one row over the chunk's keys [first, last): weights, maximum and mass. */
static void bd_weigh_row(const float *scores, float scale, int first, int last, int from, int to,
                         uint16_t *weights, float *maximum, float *mass) {
    const bd_f32v none = bd_splat(-__builtin_inff());
    bd_f32v greatest = none, sum = {0};
    for (int i = from; i < to; i += BD_LANES) {
        bd_i32v lane = BD_LANE_INDEX + i;
        bd_f32v score = bd_select((lane >= first) & (lane < last), bd_load(scores + i), none);
        greatest = bd_select(greatest < score, score, greatest);
    }
    float top = bd_max(greatest) * scale;
    for (int i = from; i < to; i += BD_LANES) {
        bd_i32v lane = BD_LANE_INDEX + i;
        bd_f32v weight = bd_exp(bd_load(scores + i) * scale - top);
        weight = bd_select((lane >= first) & (lane < last), weight, bd_splat(0.0f));
        sum += weight;
        bd_store_bf16(weights + i, weight);
    }
    *maximum = top;
    *mass = bd_sum(sum);
}

/* Weights of all rows over chunk keys [from, to), and the rows' maxima and masses. */
static void bd_weigh_rows(const bd_queries *q, const bd_keys *keys, int first_key, int from, int to,
                          const bd_scratch *s, const bd_partial *out) {
    for (int row = 0; row < q->num_rows * q->group; row++) {
        int first, last;
        bd_visible(q, keys, row / q->group, &first, &last);
        first = first > first_key ? first - first_key : 0;
        last = last - first_key < BD_KEY_CHUNK ? last - first_key : BD_KEY_CHUNK;
        uint16_t *weights = s->weights + row * BD_KEY_CHUNK;
        if (first < last) {
            bd_weigh_row(s->scores + row * BD_KEY_CHUNK, q->scale, first, last, from, to, weights,
                         &out->maximum[row], &out->mass[row]);
        } else {
            memset(weights + from, 0, (size_t)(to - from) * sizeof *weights);
            out->maximum[row] = -__builtin_inff();
            out->mass[row] = 0.0f;
        }
    }
}

/* Keys of the chunk that any row sees, widened to whole blocks of 32. */
static void bd_chunk_range(const bd_queries *q, const bd_keys *keys, int first_key, int *from,
                           int *to) {
    int first, last, ignored;
    bd_visible(q, keys, 0, &first, &ignored);
    bd_visible(q, keys, q->num_rows - 1, &ignored, &last);
    first = first > first_key ? first - first_key : 0;
    last = last - first_key < BD_KEY_CHUNK ? last - first_key : BD_KEY_CHUNK;
    *from = first / 32 * 32;
    *to = (last + 31) / 32 * 32;
}

static void bd_attend_chunk(const bd_queries *q, const bd_keys *keys, int first_key, void *memory,
                            const bd_partial *out) {
    int from, to, num_rows = q->num_rows * q->group;
    bd_scratch s = bd_lay_out_scratch(memory, q->dim_padded, num_rows);
    bd_chunk_range(q, keys, first_key, &from, &to);
    bd_score_chunk(q, keys, first_key, from, to, s.operands, s.scores);
    bd_prefetch_rows(keys->cache_keys, keys, to, BD_KEY_CHUNK - to, q->head_dim);
    bd_weigh_rows(q, keys, first_key, from, to, &s, out);
    for (int pair = from / 2; pair < to / 2; pair++)
        bd_pack_value_pair(keys, first_key + 2 * pair, pair, q->head_dim, q->dim_padded, s.values);
    bd_prefetch_rows(keys->cache_values, keys, to, BD_KEY_CHUNK - to, q->head_dim);
    for (int block = 0; block < q->dim_padded / 32; block++)
        bd_tile_all(s.weights + from, BD_KEY_CHUNK, num_rows,
                    s.values + ((ptrdiff_t)block * (BD_KEY_CHUNK / 2) + from / 2) * 64, to - from,
                    out->values + block * 32, q->dim_padded);
}

BD_INLINE float bd_exp_one(float x) { return bd_exp(bd_splat(x))[0]; }

static void bd_fold_partial(const bd_partial *into, const bd_partial *next, int num_rows,
                            int dim_padded) {
    for (int row = 0; row < num_rows; row++) {
        float *values = into->values + (ptrdiff_t)row * dim_padded;
        const float *more = next->values + (ptrdiff_t)row * dim_padded;
        if (next->maximum[row] == -__builtin_inff()) continue; /* saw no key of this chunk */
        float top = into->maximum[row] < next->maximum[row] ? next->maximum[row]
                                                            : into->maximum[row];
        float old = bd_exp_one(into->maximum[row] - top);
        float new = bd_exp_one(next->maximum[row] - top);
        if (into->maximum[row] == -__builtin_inff()) old = 0.0f;
        into->maximum[row] = top;
        into->mass[row] = into->mass[row] * old + next->mass[row] * new;
        for (int i = 0; i < dim_padded; i++) values[i] = values[i] * old + more[i] * new;
    }
}

static void bd_finish_attention(const bd_partial *partial, const bd_queries *q, uint16_t *out,
                                ptrdiff_t out_stride) {
    for (int row = 0; row < q->num_rows * q->group; row++) {
        const float *values = partial->values + (ptrdiff_t)row * q->dim_padded;
        float inverse = 1.0f / partial->mass[row];
        uint16_t *to = out + row / q->group * out_stride + row % q->group * q->head_dim;
        int i = 0;
        for (; i + BD_LANES <= q->head_dim; i += BD_LANES)
            bd_store_bf16(to + i, bd_load(values + i) * inverse);
        for (; i < q->head_dim; i++) to[i] = bd_narrow(values[i] * inverse);
    }
}

#endif
