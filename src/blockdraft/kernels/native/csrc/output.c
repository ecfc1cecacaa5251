/* The end of a pass: final norm of the asked rows, and their logits or only the greatest ones. */
#include <string.h>

#include "run.h"

static void final_norm_phase(bd_thread *t) {
    bd_run *run = t->run;
    const bd_model *model = run->model;
    int first, last;
    while (bd_take(t, run->num_head_rows, 1, &first, &last)) {
        int index = run->first_head_row + first;
        ptrdiff_t row = run->batch->head_rows[index] - run->first_row;
        uint16_t *out = run->h + first * (ptrdiff_t)run->width_padded;
        run->kernels->norm_row(run->x + row * run->width_padded, model->final_norm, model->width,
                               run->width_padded, model->norm_eps, out);
        if (run->batch->hidden)
            memcpy(run->batch->hidden + (ptrdiff_t)index * model->width, out,
                   (size_t)model->width * sizeof *out);
    }
    bd_end_phase(t);
}

/* The part of the selection state that belongs to one thread. */
static bd_top top_of(const bd_run *run, int thread) {
    ptrdiff_t row = (ptrdiff_t)thread * run->num_head_rows;
    int top_k = run->batch->top_k;
    return (bd_top){run->top.values + row * top_k, run->top.ids + row * top_k,
                    run->top.counts + row, run->top.nonfinite + row, top_k};
}

/* Whether candidate `at` of thread a's list comes before candidate `bt` of thread b's. */
static int comes_first(const bd_top *a, int at, const bd_top *b, int bt, int row) {
    ptrdiff_t i = (ptrdiff_t)row * a->top_k + at, j = (ptrdiff_t)row * b->top_k + bt;
    if (at >= a->counts[row]) return 0;
    if (bt >= b->counts[row]) return 1;
    if (a->values[i] != b->values[j]) return a->values[i] > b->values[j];
    return a->ids[i] < b->ids[j];
}

/* Merge the threads' lists of one row; places that nothing fills get id -1 and -inf. */
static void merge_row(const bd_run *run, int row) {
    int top_k = run->batch->top_k, num_threads = run->num_threads;
    int at[num_threads];
    ptrdiff_t out = (ptrdiff_t)(run->first_head_row + row) * top_k;
    memset(at, 0, sizeof at);
    for (int k = 0; k < top_k; k++) {
        int best = 0;
        for (int thread = 1; thread < num_threads; thread++) {
            bd_top challenger = top_of(run, thread), holder = top_of(run, best);
            if (comes_first(&challenger, at[thread], &holder, at[best], row)) best = thread;
        }
        bd_top from = top_of(run, best);
        int is_filled = at[best] < from.counts[row];
        ptrdiff_t source = (ptrdiff_t)row * top_k + at[best]++;
        run->batch->top_values[out + k] = is_filled ? from.values[source] : -__builtin_inff();
        run->batch->top_ids[out + k] = is_filled ? from.ids[source] : -1;
    }
    uint8_t nonfinite = 0;
    for (int thread = 0; thread < num_threads; thread++)
        nonfinite |= top_of(run, thread).nonfinite[row];
    run->batch->nonfinite[run->first_head_row + row] = nonfinite;
}

static void select_phases(bd_thread *t, const bd_product *product) {
    bd_run *run = t->run;
    bd_top top = top_of(run, t->thread);
    int first, last, num_blocks = product->linear->num_blocks;
    int grain = num_blocks / (run->num_threads * 16) + 1;
    memset(top.counts, 0, (size_t)run->num_head_rows * sizeof *top.counts);
    memset(top.nonfinite, 0, (size_t)run->num_head_rows);
    bd_product own = bd_own_product(t, product);
    while (bd_take(t, num_blocks, grain, &first, &last))
        run->kernels->select_top(&own, first, last, &top);
    bd_end_phase(t);
    while (bd_take(t, run->num_head_rows, 1, &first, &last)) merge_row(run, first);
    bd_end_phase(t);
}

void bd_head_phases(bd_thread *t) {
    bd_run *run = t->run;
    const bd_batch *batch = run->batch;
    const bd_linear *head = &run->model->head;
    if (run->num_head_rows == 0) return;
    final_norm_phase(t);
    if (batch->head_kind == BD_HEAD_NONE) return;
    bd_product product = {head, run->h, run->width_padded, run->num_head_rows, BD_TO_F32, NULL,
                          head->n, head->n, NULL};
    if (batch->head_kind == BD_HEAD_TOP) {
        select_phases(t, &product);
        return;
    }
    ptrdiff_t at = (ptrdiff_t)run->first_head_row * head->n;
    product.target = batch->head_kind == BD_HEAD_F32 ? BD_TO_F32 : BD_TO_BF16;
    product.out = batch->head_kind == BD_HEAD_F32 ? (void *)((float *)batch->logits + at)
                                                  : (void *)((uint16_t *)batch->logits + at);
    bd_multiply_phase(t, &product);
}
