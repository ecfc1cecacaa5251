/* A pass while it runs: its buffers, and how its threads share the work. */
#ifndef BD_RUN_H
#define BD_RUN_H

#include <stdatomic.h>
#include <stddef.h>

#include "bd.h"
#include "kernels.h"
#include "pool.h"

#define BD_MAX_PIECE_ROWS 512

/* A few tokens of one sequence, whose heads are attended together. */
typedef struct {
    int sequence, first_token, num_tokens;
    int first_partial; /* where the keys are split: then by chunk, by kv head */
    int num_chunks;    /* key chunks from position 0 on */
} bd_unit;

typedef struct {
    _Alignas(64) atomic_int next;
} bd_counter;

typedef struct {
    const bd_model *model;
    const bd_batch *batch; /* NULL while a context is appended */
    const bd_kernels *kernels;
    bd_cache cache;
    bd_sequence *sequences; /* of this piece of the batch; first_row counts within the piece */
    int num_sequences, first_row, num_rows;

    float *x;         /* residual stream [rows][width_padded] */
    uint16_t *h;      /* input of the next product [rows][width_padded] */
    float *qkv;       /* [rows][qkv_padded] */
    uint16_t *q;      /* [kv_heads][rows * group][dim_padded] */
    uint16_t *keys;   /* of the block, drafters only: [rows][kv_heads][head_dim] */
    uint16_t *values;
    uint16_t *heads;  /* attention's result [rows][heads_padded] */
    uint16_t *act;    /* [rows][ffn_padded] */
    float *branch;    /* a sub-layer's result before its convolution [rows][width_padded] */
    float *delta;     /* convolution coefficients [rows][delta_padded] */
    bd_top top;       /* [threads][rows] */
    char *scratch;      /* attention, [threads] */
    uint16_t *expanded; /* blocks of weights, [threads][expanded_stride] */
    float *partials;
    uint16_t *features; /* of a context, where their width must be padded */
    bd_unit *units;
    bd_counter *counters;
    const bd_product *linear_product; /* of a linear layer that is run alone */

    int width_padded, qkv_padded, dim_padded, heads_padded, ffn_padded, delta_padded,
        feature_padded;
    int group, num_units, unit_rows, num_counters, num_partials, is_split, num_threads;
    int first_head_row, num_head_rows; /* head rows of this piece */
    size_t scratch_bytes, expanded_stride;
} bd_run;

/* What one thread knows of a run. Threads go through the same phases in the same order. */
typedef struct {
    bd_run *run;
    int thread, phase;
} bd_thread;

/* Take the next items of the current phase: 1 and [*first, *last), or 0 when none are left. */
static inline int bd_take(bd_thread *t, int total, int grain, int *first, int *last) {
    int at = atomic_fetch_add_explicit(&t->run->counters[t->phase].next, grain,
                                       memory_order_relaxed);
    if (at >= total) return 0;
    *first = at;
    *last = total - at < grain ? total : at + grain;
    return 1;
}

/* Wait for all threads; what they wrote is visible afterwards. */
static inline void bd_end_phase(bd_thread *t) {
    t->phase++;
    bd_pool_barrier();
}

static inline int bd_round_up(int value, int multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

/* Phases. */
void bd_multiply_phase(bd_thread *t, const bd_product *product);
void bd_multiply_blocks(bd_thread *t, const bd_product *product, int first_block);
/* The product with this thread's room for expanded weights. */
bd_product bd_own_product(const bd_thread *t, const bd_product *product);
void bd_norm_phase(bd_thread *t, const float *weight);
void bd_layer_phases(bd_thread *t, int layer);
/* Queries, keys and values out of qkv; of a context only keys and values, into the cache. */
void bd_store_rows(bd_thread *t, int layer, int is_context);
void bd_embed_phase(bd_thread *t);
void bd_attention_phase(bd_thread *t, int layer);
void bd_head_phases(bd_thread *t);

/* Number of units and partials a run needs; fills run->units when it is not NULL. */
void bd_plan_units(bd_run *run);

/* Prepare a run over rows [first_row, first_row + num_rows) of some sequences: sizes, units,
 * buffers. Returns BD_OK or BD_ERROR_MEMORY. Call with the pool locked. */
int bd_prepare_run(bd_run *run, const bd_sequence *sequences, int num_sequences, int first_row,
                   int num_rows);
/* Rows of the piece that starts at `first_row`: at most BD_MAX_PIECE_ROWS, whole blocks of
 * sequences where a block must stay together. */
int bd_piece_rows(const bd_sequence *sequences, int num_sequences, int first_row, int is_divisible);

#define BD_PHASES_PER_LAYER 20 /* at most, beside one for each tapped layer */

#endif
