/* Attention of some query rows over one chunk of keys.
 *
 * Scores and weighted sums are tile products: 32 keys are packed like 32 outputs of a linear layer,
 * and the values of a chunk like a layer whose inputs are the keys. Chunks start at multiples of
 * BD_KEY_CHUNK and are folded in ascending order, and a key that a row does not see adds exactly
 * nothing, so a row's result depends only on its own query and on the keys it sees.
 */
#ifndef BD_ATTENTION_H
#define BD_ATTENTION_H

#include "kernels.h"
#include "tile.h"
#include "vec.h"

typedef struct {
    uint16_t *keys;    /* [chunk / 32][dim_padded / 2][2][16][2] */
    uint16_t *values;  /* [dim_padded / 32][chunk / 2][2][16][2] */
    float *scores;     /* [rows][chunk] */
    uint16_t *weights; /* [rows][chunk] */
} bd_scratch;

static size_t bd_attention_scratch(int dim_padded, int num_query_rows) {
    size_t rows = (size_t)num_query_rows;
    return BD_KEY_CHUNK * (2 * (size_t)dim_padded * sizeof(uint16_t) +
                           rows * (sizeof(float) + sizeof(uint16_t)));
}

static bd_scratch bd_lay_out_scratch(void *memory, int dim_padded, int num_query_rows) {
    bd_scratch s;
    s.keys = memory;
    s.values = s.keys + BD_KEY_CHUNK * dim_padded;
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

BD_INLINE const uint16_t *bd_row_at(const uint16_t *cache, const uint16_t *block,
                                    const bd_keys *keys, int position) {
    return position < keys->boundary ? cache + (ptrdiff_t)position * keys->stride
                                     : block + (ptrdiff_t)(position - keys->boundary) * keys->stride;
}

#if defined(__clang__) || __GNUC__ >= 12
#define BD_INTERLEAVE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define BD_INTERLEAVE(a, b, ...) __builtin_shuffle(a, b, (bd_u32v){__VA_ARGS__})
#endif
#define BD_LOW_HALVES 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define BD_HIGH_HALVES 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31

/* A square of sixteen 32-bit numbers a side, transposed: out row i at i * out_stride. */
static void bd_transpose(const uint32_t in[16][16], uint32_t *out, ptrdiff_t out_stride) {
    bd_u32v a[16], b[16];
    memcpy(a, in, sizeof a);
    /* Four perfect shuffles of rows i and i + 8 bring every element to its mirrored place. */
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 8; i++) {
            b[2 * i] = BD_INTERLEAVE(a[i], a[i + 8], BD_LOW_HALVES);
            b[2 * i + 1] = BD_INTERLEAVE(a[i], a[i + 8], BD_HIGH_HALVES);
        }
        memcpy(a, b, sizeof a);
    }
    for (int i = 0; i < 16; i++) memcpy(out + i * out_stride, &a[i], sizeof a[i]);
}

/* Rows lie apart (other heads between them), which no hardware prefetcher follows well. */
#define BD_ROWS_AHEAD 24

BD_INLINE void bd_prefetch_row(const uint16_t *cache, const bd_keys *keys, int position,
                               int head_dim) {
    int ahead = position + BD_ROWS_AHEAD;
    if (ahead >= keys->boundary || ahead >= keys->end) return;
    const char *row = (const char *)(cache + (ptrdiff_t)ahead * keys->stride);
    for (int byte = 0; byte < 2 * head_dim; byte += 64) __builtin_prefetch(row + byte);
}

/* Pack keys [first, first + 32) as 32 outputs; zeros where a key does not exist. */
static void bd_pack_keys(const bd_keys *keys, int first, int head_dim, int dim_padded,
                         uint16_t *to) {
    uint32_t *out = (uint32_t *)(void *)to; /* [dim_padded / 2][2][16] */
    for (int half = 0; half < 2; half++) {
        for (int pair = 0; pair < dim_padded / 2; pair += 16) {
            uint32_t square[16][16];
            int width = head_dim / 2 - pair < 16 ? head_dim / 2 - pair : 16;
            for (int i = 0; i < 16; i++) {
                int position = first + half * 16 + i;
                int count = position < keys->end && width > 0 ? width : 0;
                if (count) {
                    if (pair == 0) bd_prefetch_row(keys->cache_keys, keys, position, head_dim);
                    const uint16_t *row =
                        bd_row_at(keys->cache_keys, keys->block_keys, keys, position);
                    memcpy(square[i], row + 2 * pair, (size_t)count * sizeof(uint32_t));
                }
                for (int j = count; j < 16; j++) square[i][j] = 0;
            }
            bd_transpose(square, out + pair * 32 + half * 16, 32);
        }
    }
}

/* Pack values of keys [first, first + 2) as one pair of inputs of every output. */
static void bd_pack_value_pair(const bd_keys *keys, int first, int pair, int head_dim,
                               int dim_padded, uint16_t *to) {
    static const uint16_t zeros[BD_MAX_HEAD_DIM];
    const uint16_t *row[2];
    bd_prefetch_row(keys->cache_values, keys, first, head_dim);
    bd_prefetch_row(keys->cache_values, keys, first + 1, head_dim);
    for (int i = 0; i < 2; i++)
        row[i] = first + i < keys->end
                     ? bd_row_at(keys->cache_values, keys->block_values, keys, first + i)
                     : zeros;
    for (int block = 0; block < dim_padded / 32; block++) {
        uint16_t *out = to + ((ptrdiff_t)block * (BD_KEY_CHUNK / 2) + pair) * 64;
        int width = head_dim - block * 32 < 32 ? head_dim - block * 32 : 32;
        for (int i = 0; i < width; i++) {
            out[2 * i] = row[0][block * 32 + i];
            out[2 * i + 1] = row[1][block * 32 + i];
        }
        for (int i = 2 * (width > 0 ? width : 0); i < 64; i++) out[i] = 0;
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

static void bd_tile_all(const uint16_t *x, ptrdiff_t x_stride, int num_rows, const uint16_t *block,
                        int k_padded, float *out, ptrdiff_t out_stride) {
    bd_ahead nothing = {(const char *)block, 0};
    for (int row = 0; row < num_rows; row += BD_TILE_ROWS) {
        int count = num_rows - row < BD_TILE_ROWS ? num_rows - row : BD_TILE_ROWS;
        bd_tile(x + row * x_stride, x_stride, count, block, k_padded, nothing,
                out + row * out_stride, out_stride);
    }
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
    for (int block = from / 32; block < to / 32; block++) {
        uint16_t *packed = s.keys + block * 32 * q->dim_padded;
        bd_pack_keys(keys, first_key + block * 32, q->head_dim, q->dim_padded, packed);
        bd_tile_all(q->q, q->dim_padded, num_rows, packed, q->dim_padded, s.scores + block * 32,
                    BD_KEY_CHUNK);
    }
    bd_weigh_rows(q, keys, first_key, from, to, &s, out);
    for (int pair = from / 2; pair < to / 2; pair++)
        bd_pack_value_pair(keys, first_key + 2 * pair, pair, q->head_dim, q->dim_padded, s.values);
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
        for (int i = 0; i < q->head_dim; i++) to[i] = bd_narrow(values[i] * inverse);
    }
}

#endif
