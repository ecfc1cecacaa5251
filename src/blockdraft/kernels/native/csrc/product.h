/* Linear layers: products of packed weights with rows, and what becomes of the products. */
#ifndef BD_PRODUCT_H
#define BD_PRODUCT_H

#include "expand.h"
#include "kernels.h"
#include "tile.h"
#include "vec.h"

/* Rows whose inputs stay in the second-level cache while a block of weights passes by. */
#define BD_ROWS_AT_ONCE 256
#define BD_BYTES_AHEAD 4096

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

/* Weights of one block in bfloat16, and where the bytes lie that are needed after them; or int8
 * weights for a tile that expands them itself. */
typedef struct {
    const uint16_t *weights;
    bd_ahead ahead;
    const uint8_t *quantised;
} bd_block;

/* Stays valid until the next call with this product. */
BD_INLINE bd_block bd_get_block(const bd_product *product, int block) {
    const bd_linear *linear = product->linear;
    ptrdiff_t size = (ptrdiff_t)BD_BLOCK * linear->k_padded;
    if (linear->packed) {
        const uint16_t *weights = linear->packed + block * size;
        return (bd_block){weights, {(const char *)weights + BD_BYTES_AHEAD, 128}, NULL};
    }
    const uint8_t *quantised = linear->quantised + block * size;
    if (BD_EXPANDS_IN_TILE && product->num_rows <= BD_TILE_ROWS)
        return (bd_block){NULL, {NULL, 0}, quantised};
    bd_expand(quantised, linear->k_padded, product->expanded);
    /* While the expanded block is used, the next one comes from memory. */
    return (bd_block){product->expanded, {(const char *)(quantised + size), 64}, NULL};
}

/* The tile of rows [row, row + count) and one block of weights, scaled and with its bias. */
BD_INLINE void bd_product_tile(const bd_product *product, int row, int count, int index,
                               bd_block block, float *tile) {
    const bd_linear *linear = product->linear;
    const uint16_t *x = product->x + row * product->x_stride;
    if (block.weights)
        bd_tile(x, product->x_stride, count, block.weights, linear->k_padded, block.ahead, tile,
                BD_BLOCK);
#if BD_EXPANDS_IN_TILE
    else
        bd_tile_int8(x, product->x_stride, count, block.quantised, linear->k_padded, tile,
                     BD_BLOCK);
#endif
    if (linear->scales) bd_scale(tile, count, linear->scales + index * BD_BLOCK);
    if (linear->bias) bd_add_bias(tile, count, linear->bias + index * BD_BLOCK);
}

static void bd_multiply(const bd_product *product, int first, int last) {
    float tile[BD_TILE_ROWS * BD_BLOCK];
    for (int from = 0; from < product->num_rows; from += BD_ROWS_AT_ONCE) {
        int to = product->num_rows - from < BD_ROWS_AT_ONCE ? product->num_rows
                                                            : from + BD_ROWS_AT_ONCE;
        for (int index = first; index < last; index++) {
            bd_block block = bd_get_block(product, index);
            for (int row = from; row < to; row += BD_TILE_ROWS) {
                int count = to - row < BD_TILE_ROWS ? to - row : BD_TILE_ROWS;
                bd_product_tile(product, row, count, index, block, tile);
                bd_put(product, tile, row, count, index);
            }
        }
    }
}

#endif
