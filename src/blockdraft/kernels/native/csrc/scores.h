/* Scores of query rows and the keys of a chunk: [rows][chunk], raw products.
 *
 * Where tiles take keys as they lie in the cache, the queries are packed instead of them: each sum
 * runs over the same products in the same order, so its bits are the same. */
#ifndef BD_SCORES_H
#define BD_SCORES_H

#include "key_rows.h"
#include "tile.h"

static void bd_tile_all(const uint16_t *x, ptrdiff_t x_stride, int num_rows, const uint16_t *block,
                        int k_padded, float *out, ptrdiff_t out_stride) {
    bd_ahead nothing = {(const char *)block, 0};
    for (int row = 0; row < num_rows; row += BD_TILE_ROWS) {
        int count = num_rows - row < BD_TILE_ROWS ? num_rows - row : BD_TILE_ROWS;
        bd_tile(x + row * x_stride, x_stride, count, block, k_padded, nothing, 0,
                out + row * out_stride, out_stride);
    }
}

#if BD_TILE_TAKES_KEYS

#define BD_KEYS_OF_TILE 16

/* Bytes of packed operands: queries as [rows / 16][dim_padded / 2][16][2]. */
static size_t bd_score_operand_rows(int num_rows) { return (size_t)(num_rows + 15) / 16 * 16; }

static void bd_pack_queries(const bd_queries *q, int num_rows, uint16_t *to) {
    uint32_t *out = (uint32_t *)(void *)to;
    for (int row = 0; row < num_rows; row += 16) {
        int count = num_rows - row < 16 ? num_rows - row : 16;
        for (int pair = 0; pair < q->dim_padded / 2; pair += 16, out += 256) {
            uint32_t square[16][16] = {{0}};
            for (int i = 0; i < count; i++)
                memcpy(square[i], q->q + (ptrdiff_t)(row + i) * q->dim_padded + 2 * pair, 64);
            bd_transpose(square, out, 16);
        }
    }
}

/* Sixteen keys for a tile: where they lie, or a copy with zeros where keys do not exist. */
static const uint16_t *bd_keys_of_tile(const bd_queries *q, const bd_keys *keys, int first,
                                       uint16_t *copy, ptrdiff_t *stride) {
    int last = first + BD_KEYS_OF_TILE;
    if (q->head_dim == q->dim_padded && (last <= keys->boundary ||
                                         (first >= keys->boundary && last <= keys->end))) {
        *stride = keys->stride;
        return bd_row_at(keys->cache_keys, keys->block_keys, keys, first);
    }
    *stride = q->dim_padded;
    memset(copy, 0, BD_KEYS_OF_TILE * (size_t)q->dim_padded * sizeof *copy);
    for (int i = 0; i < BD_KEYS_OF_TILE && first + i < keys->end; i++)
        memcpy(copy + (ptrdiff_t)i * q->dim_padded,
               bd_row_at(keys->cache_keys, keys->block_keys, keys, first + i),
               (size_t)q->head_dim * sizeof *copy);
    return copy;
}

static void bd_score_chunk(const bd_queries *q, const bd_keys *keys, int first_key, int from,
                           int to, uint16_t *operands, float *scores) {
    int num_rows = q->num_rows * q->group;
    _Alignas(64) uint16_t copy[BD_KEYS_OF_TILE * BD_MAX_HEAD_DIM];
    bd_pack_queries(q, num_rows, operands);
    for (int at = from; at < to; at += BD_KEYS_OF_TILE) {
        ptrdiff_t stride;
        bd_prefetch_rows(keys->cache_keys, keys, at, BD_KEYS_OF_TILE, q->head_dim);
        const uint16_t *rows = bd_keys_of_tile(q, keys, first_key + at, copy, &stride);
        for (int row = 0; row < num_rows; row += 16) {
            int count = num_rows - row < 16 ? num_rows - row : 16;
            bd_key_tile(rows, stride, operands + (ptrdiff_t)row * q->dim_padded, q->dim_padded,
                        count, scores + (ptrdiff_t)row * BD_KEY_CHUNK + at, BD_KEY_CHUNK);
        }
    }
}

#else

/* Keys as [chunk / 32][dim_padded / 2][2][16][2]. */
static size_t bd_score_operand_rows(int num_rows) {
    (void)num_rows;
    return BD_KEY_CHUNK;
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

static void bd_score_chunk(const bd_queries *q, const bd_keys *keys, int first_key, int from,
                           int to, uint16_t *operands, float *scores) {
    int num_rows = q->num_rows * q->group;
    for (int at = from; at < to; at += 32) {
        bd_prefetch_rows(keys->cache_keys, keys, at, 32, q->head_dim);
        bd_pack_keys(keys, first_key + at, q->head_dim, q->dim_padded, operands);
        bd_tile_all(q->q, q->dim_padded, num_rows, operands, q->dim_padded, scores + at,
                    BD_KEY_CHUNK);
    }
}

#endif
#endif
