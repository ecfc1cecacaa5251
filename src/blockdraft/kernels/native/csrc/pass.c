/* One pass over a batch, and the growth of a drafter's context. */
#include <string.h>

#include "run.h"

static void pass_task(void *argument, int thread, int num_threads) {
    bd_thread t = {argument, thread, 0};
    (void)num_threads;
    t.run->kernels->thread_begin();
    bd_embed_phase(&t);
    for (int layer = 0; layer < t.run->model->num_layers; layer++) bd_layer_phases(&t, layer);
    bd_head_phases(&t);
    t.run->kernels->thread_end();
}

/* Head rows [*first, *first + *count) lie in rows [from, to); `head_rows` ascends. */
static void find_head_rows(const bd_batch *batch, int from, int to, int *first, int *count) {
    *first = 0;
    *count = 0;
    for (int i = 0; i < batch->num_head_rows; i++) {
        if (batch->head_rows[i] < from) ++*first;
        else if (batch->head_rows[i] < to) ++*count;
    }
}

static int run_piece(bd_run *run, const bd_batch *batch, int first_row, int num_rows) {
    find_head_rows(batch, first_row, first_row + num_rows, &run->first_head_row,
                   &run->num_head_rows);
    int status = bd_prepare_run(run, batch->sequences, batch->num_sequences, first_row, num_rows);
    if (status == BD_OK) bd_pool_run(pass_task, run);
    return status;
}

int bd_run_pass(const bd_model *model, const bd_batch *batch) {
    const bd_kernels *kernels = bd_find_kernels(model->isa);
    if (kernels == NULL || batch->top_k > BD_MAX_TOP) return BD_ERROR_ARGUMENT;
    int status = BD_OK, row = 0;
    bd_pool_lock();
    while (status == BD_OK && row < batch->num_rows) {
        bd_run run = {.model = model, .batch = batch, .kernels = kernels, .cache = batch->cache};
        int rows =
            bd_piece_rows(batch->sequences, batch->num_sequences, row, model->keeps_rows);
        status = rows > 0 ? run_piece(&run, batch, row, rows) : BD_ERROR_ARGUMENT;
        row += rows;
    }
    bd_pool_unlock();
    return status;
}

/* What a context task reads beside its run. */
typedef struct {
    bd_run run;
    const uint16_t *features; /* of this piece [rows][feature.k] */
} bd_append;

static void copy_features_phase(bd_thread *t, const uint16_t *features) {
    bd_run *run = t->run;
    const bd_linear *linear = &run->model->feature;
    int first, last;
    while (bd_take(t, run->num_rows, 1, &first, &last)) {
        uint16_t *to = run->features + (ptrdiff_t)first * linear->k_padded;
        memcpy(to, features + (ptrdiff_t)first * linear->k, (size_t)linear->k * sizeof *to);
        memset(to + linear->k, 0, (size_t)(linear->k_padded - linear->k) * sizeof *to);
    }
    bd_end_phase(t);
}

static void append_task(void *argument, int thread, int num_threads) {
    bd_append *append = argument;
    bd_run *run = &append->run;
    const bd_model *model = run->model;
    bd_thread t = {run, thread, 0};
    (void)num_threads;
    run->kernels->thread_begin();
    if (run->features != NULL && run->feature_padded) copy_features_phase(&t, append->features);
    bd_product feature = {&model->feature,
                          run->feature_padded ? run->features : append->features,
                          model->feature.k_padded, run->num_rows, BD_TO_F32, run->x,
                          run->width_padded, run->width_padded, NULL};
    bd_multiply_phase(&t, &feature);
    bd_norm_phase(&t, model->feature_norm);
    /* Only the blocks of the q/k/v product that hold keys and values. */
    int first_block = model->num_heads * model->head_dim / BD_BLOCK;
    for (int layer = 0; layer < model->num_layers; layer++) {
        bd_product kv = {&model->layers[layer].qkv, run->h, run->width_padded, run->num_rows,
                         BD_TO_F32, run->qkv, run->qkv_padded, run->qkv_padded, NULL};
        bd_multiply_blocks(&t, &kv, first_block);
        bd_store_rows(&t, layer, 1);
    }
    run->kernels->thread_end();
}

int bd_append_context(const bd_model *model, const bd_cache *cache, const uint16_t *features,
                      const bd_sequence *sequences, int num_sequences, int num_rows) {
    const bd_kernels *kernels = bd_find_kernels(model->isa);
    if (kernels == NULL) return BD_ERROR_ARGUMENT;
    int status = BD_OK, row = 0;
    bd_pool_lock();
    while (status == BD_OK && row < num_rows) {
        bd_append append = {.run = {.model = model, .kernels = kernels, .cache = *cache},
                            .features = features + (ptrdiff_t)row * model->feature.k};
        int rows = bd_piece_rows(sequences, num_sequences, row, 1);
        status = rows > 0 ? bd_prepare_run(&append.run, sequences, num_sequences, row, rows)
                          : BD_ERROR_ARGUMENT;
        if (status == BD_OK) bd_pool_run(append_task, &append);
        row += rows;
    }
    bd_pool_unlock();
    return status;
}
