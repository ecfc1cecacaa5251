/* The phases of one decoder layer. Each phase is shared by all threads and ends at a barrier. */
#include "run.h"

/* Blocks a thread takes at a time: few enough that a slow thread holds nobody up for long. */
static int grain_of(const bd_run *run, int num_blocks) {
    int grain = num_blocks / (run->num_threads * 4);
    return grain > 0 ? grain : 1;
}

bd_product bd_own_product(const bd_thread *t, const bd_product *product) {
    bd_product own = *product;
    if (product->linear->kind != BD_WEIGHTS_BF16)
        own.expanded = t->run->expanded + t->thread * (ptrdiff_t)t->run->expanded_stride;
    return own;
}

void bd_multiply_blocks(bd_thread *t, const bd_product *product, int first_block) {
    int first, last, count = product->linear->num_blocks - first_block;
    bd_product own = bd_own_product(t, product);
    while (bd_take(t, count, grain_of(t->run, count), &first, &last))
        t->run->kernels->multiply(&own, first_block + first, first_block + last);
    bd_end_phase(t);
}

void bd_multiply_phase(bd_thread *t, const bd_product *product) {
    bd_multiply_blocks(t, product, 0);
}

/* h = norm(x) * weight */
void bd_norm_phase(bd_thread *t, const float *weight) {
    bd_run *run = t->run;
    ptrdiff_t stride = run->width_padded;
    int first, last;
    while (bd_take(t, run->num_rows, 4, &first, &last))
        for (int row = first; row < last; row++)
            run->kernels->norm_row(run->x + row * stride, weight, run->model->width,
                                   run->width_padded, run->model->norm_eps, run->h + row * stride);
    bd_end_phase(t);
}

static bd_product product_of(const bd_linear *linear, const uint16_t *x, int x_stride, int num_rows,
                             bd_target target, void *out, int out_stride) {
    return (bd_product){linear, x, x_stride, num_rows, target, out, out_stride, out_stride,
                        NULL};
}

/* Rows of a block follow each other; the first of each sequence has no previous row. */
static int starts_block(const bd_run *run, int row) {
    for (int i = 0; i < run->num_sequences; i++)
        if (run->sequences[i].first_row == row) return 1;
    return 0;
}

/* One side of a sub-layer's convolution, row by row: side 0 reads h (in place is impossible, so
 * through `branch`), side 1 reads the sub-layer's result and adds to the residual stream. */
static void convolve_phase(bd_thread *t, const bd_conv *conv, int side) {
    bd_run *run = t->run;
    const bd_model *model = run->model;
    int width = model->width, deltas = 2 * (width / model->conv_group), first, last;
    ptrdiff_t stride = run->width_padded;
    float out[width];
    while (bd_take(t, run->num_rows, 1, &first, &last)) {
        const float *current = run->branch + first * stride;
        const float *previous = starts_block(run, first) ? NULL : current - stride;
        const float *delta = run->delta + first * (ptrdiff_t)run->delta_padded + side * deltas;
        run->kernels->convolve(current, previous, conv->base + side * 2 * width, delta, width,
                               model->conv_group, out);
        if (side == 0)
            run->kernels->narrow(out, width, run->width_padded, run->h + first * stride);
        else
            for (int i = 0; i < width; i++) run->x[first * stride + i] += out[i];
    }
    bd_end_phase(t);
}

/* h = norm(x), convolved where the layer has a convolution. */
static void enter(bd_thread *t, const float *norm, const bd_conv *conv) {
    bd_run *run = t->run;
    int first, last;
    ptrdiff_t stride = run->width_padded;
    bd_norm_phase(t, norm);
    if (conv->base == NULL) return;
    while (bd_take(t, run->num_rows, 4, &first, &last))
        for (int row = first; row < last; row++)
            run->kernels->widen(run->h + row * stride, run->model->width, run->width_padded, 1.0f,
                                run->branch + row * stride);
    bd_end_phase(t);
    bd_product product = product_of(&conv->projection, run->h, run->width_padded, run->num_rows,
                                    BD_TO_F32, run->delta, run->delta_padded);
    bd_multiply_phase(t, &product);
    convolve_phase(t, conv, 0);
}

/* x += linear(input), convolved where the layer has a convolution. */
static void leave(bd_thread *t, const bd_linear *linear, const uint16_t *input, int stride,
                  const bd_conv *conv) {
    bd_run *run = t->run;
    bd_product product = product_of(linear, input, stride, run->num_rows, BD_TO_RESIDUAL, run->x,
                                    run->width_padded);
    if (conv->base) {
        product.target = BD_TO_F32;
        product.out = run->branch;
    }
    bd_multiply_phase(t, &product);
    if (conv->base) convolve_phase(t, conv, 1);
}

static void tap_phase(bd_thread *t, int layer) {
    bd_run *run = t->run;
    const bd_batch *batch = run->batch;
    int width = run->model->width, first, last;
    for (int tap = 0; tap < batch->num_taps; tap++) {
        if (batch->tap_layers[tap] != layer) continue;
        while (bd_take(t, run->num_rows, 4, &first, &last))
            for (int row = first; row < last; row++)
                run->kernels->narrow(
                    run->x + row * (ptrdiff_t)run->width_padded, width, width,
                    batch->features +
                        ((ptrdiff_t)(run->first_row + row) * batch->num_taps + tap) * width);
        t->phase++; /* nothing waits for the features: no barrier */
    }
}

void bd_layer_phases(bd_thread *t, int index) {
    bd_run *run = t->run;
    const bd_layer *layer = &run->model->layers[index];
    enter(t, layer->attention_norm, &layer->attention_conv);
    bd_product qkv = product_of(&layer->qkv, run->h, run->width_padded, run->num_rows, BD_TO_F32,
                                run->qkv, run->qkv_padded);
    bd_multiply_phase(t, &qkv);
    bd_store_rows(t, index, 0);
    bd_attention_phase(t, index);
    leave(t, &layer->output, run->heads, run->heads_padded, &layer->attention_conv);
    enter(t, layer->mlp_norm, &layer->mlp_conv);
    bd_product gate_up = product_of(&layer->gate_up, run->h, run->width_padded, run->num_rows,
                                    BD_TO_SWIGLU, run->act, run->ffn_padded);
    bd_multiply_phase(t, &gate_up);
    leave(t, &layer->down, run->act, run->ffn_padded, &layer->mlp_conv);
    tap_phase(t, index);
}
