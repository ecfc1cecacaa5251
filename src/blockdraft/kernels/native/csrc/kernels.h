/* The kernels of one instruction set, as a table. Each function does a share of one phase of a
 * pass; shares never overlap in what they write. */
#ifndef BD_KERNELS_H
#define BD_KERNELS_H

#include <stddef.h>

#include "bd.h"

#define BD_KEY_CHUNK 128 /* keys whose softmax is taken at once; chunks start at multiples of it */
#define BD_UNIT_ROWS 64  /* query rows (tokens x heads of a group) of one attention unit, at most */

/* What becomes of the products of a linear layer. */
typedef enum { BD_TO_F32, BD_TO_BF16, BD_TO_RESIDUAL, BD_TO_SWIGLU } bd_target;

typedef struct {
    const bd_linear *linear;
    const uint16_t *x; /* [num_rows][x_stride], zeros from k to k_padded */
    ptrdiff_t x_stride;
    int num_rows;
    bd_target target;
    void *out;
    ptrdiff_t out_stride;
    int out_columns;    /* columns at and beyond are not written */
    uint16_t *expanded; /* of this thread, for a block that is not bfloat16: [32 * k_padded] */
} bd_product;

/* Where a query finds its keys: rows before `boundary` in the cache, the others in scratch. */
typedef struct {
    const uint16_t *cache_keys, *cache_values; /* of one layer, slot and kv head; row p at p*stride */
    const uint16_t *block_keys, *block_values; /* row p at (p - boundary) * stride */
    ptrdiff_t stride;
    int boundary, end; /* keys at and beyond `end` do not exist */
    /* What this thread should ask for while it attends key p of the chunk, if p < next_end: the
     * head_dim numbers at cache + next + p * head_dim. */
    ptrdiff_t next;
    int next_end;
} bd_keys;

/* `num_rows` tokens from position `start` on, each with `group` query heads of one kv head. */
typedef struct {
    const uint16_t *q; /* [num_rows * group][dim_padded] */
    int start, num_rows, group, dim_padded, head_dim;
    int window, is_causal;
    float scale;
} bd_queries;

/* Softmax state of some query rows over some keys: maximum, mass, weighted values. */
typedef struct {
    float *maximum, *mass; /* [rows] */
    float *values;         /* [rows][dim_padded] */
} bd_partial;

typedef struct {
    float *values;   /* [rows][top_k] greatest first */
    int64_t *ids;    /* [rows][top_k] */
    int32_t *counts; /* [rows] */
    uint8_t *nonfinite;
    int top_k;
} bd_top;

typedef struct {
    int tile_rows;
    void (*thread_begin)(void);
    void (*thread_end)(void);
    /* Blocks [first, last) of a product, all rows. */
    void (*multiply)(const bd_product *product, int first, int last);
    /* Bytes of scratch that attend_chunk needs for each thread. */
    size_t (*attention_scratch)(int dim_padded, int num_query_rows);
    /* Softmax of all query rows over the keys of the chunk that starts at `first_key`, of which
     * at least one is visible to one of them. */
    void (*attend_chunk)(const bd_queries *queries, const bd_keys *keys, int first_key,
                         void *scratch, const bd_partial *out);
    void (*fold_partial)(const bd_partial *into, const bd_partial *next, int num_query_rows,
                         int dim_padded);
    /* out[row] = values / mass as bfloat16, token t and head g at t * out_stride + g * head_dim. */
    void (*finish_attention)(const bd_partial *partial, const bd_queries *queries, uint16_t *out,
                             ptrdiff_t out_stride);
    /* out = bfloat16(x / rms(x) * weight), zeros from width to padded. */
    void (*norm_row)(const float *x, const float *weight, int width, int padded, float eps,
                     uint16_t *out);
    void (*norm_head)(float *x, const float *weight, int width, float eps);
    /* Half-split rotary: out[0..d) from x[0..d), zeros from d to padded. */
    void (*rotate)(const float *x, const float *cosine, const float *sine, int head_dim,
                   int padded, uint16_t *out);
    void (*narrow)(const float *x, int count, int padded, uint16_t *out);
    void (*widen)(const uint16_t *x, int count, int padded, float scale, float *out);
    /* Products of vocabulary blocks [first, last), only the greatest kept. */
    void (*select_top)(const bd_product *product, int first, int last, const bd_top *top);
    /* Two-tap convolution of one row; previous is NULL at a block's start. */
    void (*convolve)(const float *current, const float *previous, const float *base,
                     const float *delta, int width, int group, float *out);
    /* The greatest value of a row; nan if there is one anywhere. */
    float (*row_maximum)(const float *x, int count);
    /* e^((x - maximum) * scale), and the sums of each `group` (a multiple of 16) of them. */
    void (*weigh)(const float *x, int count, float maximum, float scale, float *weights);
    void (*sum_weights)(const float *x, int count, float maximum, float scale, int group,
                        double *sums);
} bd_kernels;

const bd_kernels *bd_find_kernels(int isa);

#endif
