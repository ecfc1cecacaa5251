/* The buffers of a run: one block of memory that grows to the largest need and is kept. */
#include <stdlib.h>
#include <string.h>

#include "run.h"

static char *memory = NULL;
static size_t memory_bytes = 0;

int64_t bd_workspace_bytes(void) { return (int64_t)memory_bytes; }

static char *workspace(size_t num_bytes) {
    if (num_bytes <= memory_bytes) return memory;
    free(memory);
    memory_bytes = 0;
    num_bytes = (num_bytes + 4095) / 4096 * 4096;
    memory = aligned_alloc(4096, num_bytes);
    if (memory != NULL) memory_bytes = num_bytes;
    return memory;
}

/* Hands out pieces of `base`; with base NULL it only counts. */
typedef struct {
    char *base;
    size_t used;
} arena;

static void *take(arena *a, size_t count, size_t size) {
    void *at = a->base ? a->base + a->used : NULL;
    a->used += (count * size + 63) / 64 * 64;
    return at;
}

/* Whether any product of the model has weights that are expanded when they are used. */
static int expands(const bd_model *m) {
    int kinds = m->head.kind | m->feature.kind;
    for (int i = 0; i < m->num_layers; i++) {
        const bd_layer *layer = &m->layers[i];
        kinds |= layer->qkv.kind | layer->output.kind | layer->gate_up.kind | layer->down.kind;
        kinds |= layer->attention_conv.projection.kind | layer->mlp_conv.projection.kind;
    }
    return kinds != BD_WEIGHTS_BF16;
}

static void set_sizes(bd_run *run) {
    const bd_model *m = run->model;
    const bd_layer *layer = m->num_layers ? &m->layers[0] : NULL;
    run->group = m->num_heads / m->num_kv_heads;
    run->width_padded = bd_round_up(m->width, BD_BLOCK);
    run->dim_padded = bd_round_up(m->head_dim, BD_BLOCK);
    run->heads_padded = bd_round_up(m->num_heads * m->head_dim, BD_BLOCK);
    run->ffn_padded = bd_round_up(m->ffn_width, BD_BLOCK);
    run->qkv_padded =
        bd_round_up((m->num_heads + 2 * m->num_kv_heads) * m->head_dim, BD_BLOCK);
    run->delta_padded = layer ? layer->attention_conv.projection.num_blocks * BD_BLOCK : 0;
    run->feature_padded = m->feature.k == m->feature.k_padded ? 0 : m->feature.k_padded;
    int widest = m->feature.k_padded;
    const int widths[] = {run->width_padded, run->heads_padded, run->ffn_padded};
    for (int i = 0; i < 3; i++) widest = widths[i] > widest ? widths[i] : widest;
    run->expanded_stride = expands(m) ? (size_t)widest * BD_BLOCK : 0;
}

static void lay_out(bd_run *run, arena *a) {
    size_t rows = (size_t)run->num_rows, threads = (size_t)run->num_threads;
    size_t block = run->model->keeps_rows ? 0 : rows * (size_t)run->model->num_kv_heads;
    size_t unit = (size_t)run->unit_rows;
    size_t top = run->batch ? (size_t)run->batch->top_k * threads * (size_t)run->num_head_rows : 0;
    size_t has_conv = run->delta_padded > 0;
    run->x = take(a, rows * (size_t)run->width_padded, sizeof(float));
    run->h = take(a, rows * (size_t)run->width_padded, sizeof(uint16_t));
    run->qkv = take(a, rows * (size_t)run->qkv_padded, sizeof(float));
    run->q = take(a, rows * (size_t)(run->model->num_heads * run->dim_padded), sizeof(uint16_t));
    run->keys = take(a, block * (size_t)run->model->head_dim, sizeof(uint16_t));
    run->values = take(a, block * (size_t)run->model->head_dim, sizeof(uint16_t));
    run->heads = take(a, rows * (size_t)run->heads_padded, sizeof(uint16_t));
    run->act = take(a, rows * (size_t)run->ffn_padded, sizeof(uint16_t));
    run->branch = take(a, has_conv * rows * (size_t)run->width_padded, sizeof(float));
    run->delta = take(a, rows * (size_t)run->delta_padded, sizeof(float));
    run->features = take(a, rows * (size_t)run->feature_padded, sizeof(uint16_t));
    run->top.values = take(a, top, sizeof(float));
    run->top.ids = take(a, top, sizeof(int64_t));
    run->top.counts = take(a, threads * (size_t)run->num_head_rows, sizeof(int32_t));
    run->top.nonfinite = take(a, threads * (size_t)run->num_head_rows, sizeof(uint8_t));
    run->scratch = take(a, threads, run->scratch_bytes);
    run->expanded = take(a, threads * run->expanded_stride, sizeof(uint16_t));
    run->partials = take(a, (size_t)run->num_partials * unit * (size_t)(run->dim_padded + 2),
                         sizeof(float));
    run->units = take(a, (size_t)run->num_units, sizeof(bd_unit));
    run->counters = take(a, (size_t)run->num_counters, sizeof(bd_counter));
    run->sequences = take(a, (size_t)run->num_sequences, sizeof(bd_sequence));
}

/* The parts of `sequences` that lie in the piece, counted from its first row. */
static int cut_sequences(const bd_run *run, const bd_sequence *sequences, int num_sequences,
                         bd_sequence *out) {
    int count = 0, piece_end = run->first_row + run->num_rows;
    for (int i = 0; i < num_sequences; i++) {
        bd_sequence s = sequences[i];
        int first = s.first_row > run->first_row ? s.first_row : run->first_row;
        int last = s.first_row + s.num_rows < piece_end ? s.first_row + s.num_rows : piece_end;
        if (first >= last) continue;
        if (out)
            out[count] = (bd_sequence){s.slot, s.start + first - s.first_row, last - first,
                                       first - run->first_row};
        count++;
    }
    return count;
}

int bd_piece_rows(const bd_sequence *sequences, int num_sequences, int first_row,
                  int is_divisible) {
    int rows = 0;
    for (int i = 0; i < num_sequences; i++) {
        int end = sequences[i].first_row + sequences[i].num_rows;
        if (end <= first_row) continue;
        if (end - first_row > BD_MAX_PIECE_ROWS) {
            if (is_divisible) return BD_MAX_PIECE_ROWS;
            return rows ? rows : end - first_row;
        }
        rows = end - first_row;
    }
    return rows;
}

int bd_prepare_run(bd_run *run, const bd_sequence *sequences, int num_sequences, int first_row,
                   int num_rows) {
    run->first_row = first_row;
    run->num_rows = num_rows;
    run->num_threads = bd_pool_num_threads();
    run->num_sequences = cut_sequences(run, sequences, num_sequences, NULL);
    run->num_counters = run->model->num_layers * BD_PHASES_PER_LAYER + 16 +
                        (run->batch ? run->batch->num_taps : 0);
    set_sizes(run);
    bd_sequence cut[run->num_sequences + 1];
    cut_sequences(run, sequences, num_sequences, cut);
    run->sequences = cut;
    run->units = NULL;
    bd_plan_units(run);
    run->scratch_bytes =
        (run->kernels->attention_scratch(run->dim_padded, run->unit_rows) + 63) / 64 * 64;
    arena count = {NULL, 0};
    lay_out(run, &count);
    arena place = {workspace(count.used), 0};
    if (place.base == NULL) return BD_ERROR_MEMORY;
    lay_out(run, &place);
    memcpy(run->sequences, cut, (size_t)run->num_sequences * sizeof *cut);
    memset(run->counters, 0, (size_t)run->num_counters * sizeof *run->counters);
    bd_plan_units(run);
    return BD_OK;
}
