/* Linear layers: products of packed weights with rows, and what becomes of the products. */
#ifndef BD_PRODUCT_H
#define BD_PRODUCT_H

#include "expand.h"
#include "expand_groups.h"
#include "kernels.h"
#include "tile.h"
#include "vec.h"

/* Rows whose inputs stay in the second-level cache while a block of weights passes by. */
#define BD_ROWS_AT_ONCE 256
#define BD_BYTES_AHEAD 4096
#define BD_STEP_INPUTS 32
#define BD_PANEL_STEPS 18 /* of 2 KB of bfloat16 weights */

BD_INLINE bd_f32v bd_silu(bd_f32v x) { return x / (bd_exp(-x) + 1.0f); }

static void bd_add_bias(float *tile, int num_rows, const float *bias) {
    bd_f32v low = bd_load(bias), high = bd_load(bias + BD_LANES);
    for (int r = 0; r < num_rows; r++, tile += BD_BLOCK) {
        bd_store(tile, bd_load(tile) + low);
        bd_store(tile + BD_LANES, bd_load(tile + BD_LANES) + high);
    }
}

static void bd_scale(float *tile, int num_rows, const float *scales) {
    bd_f32v low = bd_load(scales), high = bd_load(scales + BD_LANES);
    for (int r = 0; r < num_rows; r++, tile += BD_BLOCK) {
        bd_store(tile, bd_load(tile) * low);
        bd_store(tile + BD_LANES, bd_load(tile + BD_LANES) * high);
    }
}

BD_INLINE void bd_put_row(const bd_product *product, const float *tile, ptrdiff_t at, int columns) {
    if (product->target == BD_TO_F32) {
        memcpy((float *)product->out + at, tile, (size_t)columns * sizeof(float));
        return;
    }
    if (product->target == BD_TO_RESIDUAL) {
        float *residual = (float *)product->out + at;
        for (int c = 0; c < columns; c++) residual[c] += tile[c];
        return;
    }
    uint16_t narrow[BD_BLOCK];
    bd_store_bf16(narrow, bd_load(tile));
    bd_store_bf16(narrow + BD_LANES, bd_load(tile + BD_LANES));
    memcpy((uint16_t *)product->out + at, narrow, (size_t)columns * sizeof(uint16_t));
}

/* A block of SwiGLU weights makes 16 gates and their 16 inputs. */
static void bd_put_swiglu(const bd_product *product, const float *tile, int row, int num_rows,
                          int block) {
    uint16_t *out = (uint16_t *)product->out + row * product->out_stride + block * BD_LANES;
    for (int r = 0; r < num_rows; r++, tile += BD_BLOCK, out += product->out_stride)
        bd_store_bf16(out, bd_silu(bd_load(tile)) * bd_load(tile + BD_LANES));
}

static void bd_put(const bd_product *product, float *tile, int row, int num_rows, int block) {
    if (product->target == BD_TO_SWIGLU) {
        bd_put_swiglu(product, tile, row, num_rows, block);
        return;
    }
    int columns = product->out_columns - block * BD_BLOCK;
    if (columns > BD_BLOCK) columns = BD_BLOCK;
    for (int r = 0; r < num_rows; r++)
        bd_put_row(product, tile + r * BD_BLOCK,
                   (row + r) * product->out_stride + block * BD_BLOCK, columns);
}

/* Bytes of a block's weights for every pair of inputs (of groups: on average). */
BD_INLINE int bd_pair_bytes(int kind) {
    const int bytes[] = {[BD_WEIGHTS_BF16] = 4 * BD_BLOCK,
                         [BD_WEIGHTS_INT8] = 2 * BD_BLOCK,
                         [BD_WEIGHTS_GROUP4] = BD_GROUP4_BYTES / 16,
                         [BD_WEIGHTS_GROUP8] = BD_GROUP8_BYTES / 16};
    return bytes[kind];
}

/* Weights of `num_inputs` inputs of a block in bfloat16: where they lie, or expanded into `to`. */
BD_INLINE const uint16_t *bd_panel(int kind, const uint8_t *packed, int num_inputs, uint16_t *to) {
    if (kind == BD_WEIGHTS_BF16) return (const uint16_t *)(const void *)packed;
    if (kind == BD_WEIGHTS_GROUP4) bd_expand_groups4(packed, num_inputs, to);
    else if (kind == BD_WEIGHTS_GROUP8) bd_expand_groups8(packed, num_inputs, to);
    else bd_expand(packed, num_inputs, to);
    return to;
}

/* Inputs that are multiplied at a time. Weights that several tiles of rows need come in panels that
 * stay in the first-level cache; a sum goes on where it stopped, in the same order. */
BD_INLINE int bd_panel_inputs(int k_padded, int num_rows) {
    int steps = k_padded / BD_STEP_INPUTS;
    if (num_rows <= BD_TILE_ROWS || steps <= BD_PANEL_STEPS) return k_padded;
    int panels = (steps + BD_PANEL_STEPS - 1) / BD_PANEL_STEPS;
    return (steps + panels - 1) / panels * BD_STEP_INPUTS;
}

/* The first tile of a panel, and the panel in bfloat16 for the tiles after it, if there are any. */
BD_INLINE const uint16_t *bd_first_tile(const bd_product *product, const uint16_t *x, int num_rows,
                                        const uint8_t *packed, int num_inputs, int is_only,
                                        int goes_on, float *sums) {
    int kind = product->linear->kind, pair_bytes = bd_pair_bytes(kind);
#if BD_TILE_EXPANDS
    if (kind != BD_WEIGHTS_BF16) {
        bd_tile_expanding(kind, x, product->x_stride, num_rows, packed, num_inputs,
                          product->expanded, !is_only, goes_on, sums, BD_BLOCK);
        return product->expanded;
    }
#endif
#if defined(BD_TILE_INT8)
    if (kind == BD_WEIGHTS_INT8 && is_only && !goes_on) {
        bd_tile_int8(x, product->x_stride, num_rows, packed, num_inputs, sums, BD_BLOCK);
        return NULL; /* no tile follows */
    }
#endif
    (void)is_only;
    const uint16_t *weights = bd_panel(kind, packed, num_inputs, product->expanded);
    /* While this tile is multiplied, the weights behind it come from memory. */
    const uint8_t *behind =
        packed + (kind == BD_WEIGHTS_BF16 ? BD_BYTES_AHEAD : num_inputs / 2 * pair_bytes);
    bd_tile(x, product->x_stride, num_rows, weights, num_inputs,
            (bd_ahead){(const char *)behind, pair_bytes}, goes_on, sums, BD_BLOCK);
    return weights;
}

/* Products of rows [from, to) and one block of weights: sums[to - from][32]. */
static void bd_product_block(const bd_product *product, int from, int to, int index, float *sums) {
    const bd_linear *linear = product->linear;
    const bd_ahead nothing = {NULL, 0};
    int k_padded = linear->k_padded, num_rows = to - from, pair_bytes = bd_pair_bytes(linear->kind);
    int inputs = bd_panel_inputs(k_padded, num_rows);
    const uint16_t *x = product->x + from * product->x_stride;
    const uint8_t *packed =
        (const uint8_t *)linear->packed + (ptrdiff_t)index * (k_padded / 2) * pair_bytes;
    for (int k = 0; k < k_padded; k += inputs, packed += (ptrdiff_t)(inputs / 2) * pair_bytes) {
        int count = k_padded - k < inputs ? k_padded - k : inputs;
        int rows = num_rows < BD_TILE_ROWS ? num_rows : BD_TILE_ROWS;
        const uint16_t *weights =
            bd_first_tile(product, x + k, rows, packed, count, rows == num_rows, k > 0, sums);
        for (int row = rows; row < num_rows; row += rows) {
            rows = num_rows - row < BD_TILE_ROWS ? num_rows - row : BD_TILE_ROWS;
            bd_tile(x + row * product->x_stride + k, product->x_stride, rows, weights, count,
                    nothing, k > 0, sums + row * BD_BLOCK, BD_BLOCK);
        }
    }
    if (linear->scales) bd_scale(sums, num_rows, linear->scales + index * BD_BLOCK);
    if (linear->bias) bd_add_bias(sums, num_rows, linear->bias + index * BD_BLOCK);
}

static void bd_multiply(const bd_product *product, int first, int last) {
    float sums[BD_ROWS_AT_ONCE * BD_BLOCK];
    for (int from = 0; from < product->num_rows; from += BD_ROWS_AT_ONCE) {
        int left = product->num_rows - from;
        int to = from + (left < BD_ROWS_AT_ONCE ? left : BD_ROWS_AT_ONCE);
        for (int index = first; index < last; index++) {
            bd_product_block(product, from, to, index, sums);
            bd_put(product, sums, from, to - from, index);
        }
    }
}

#endif
