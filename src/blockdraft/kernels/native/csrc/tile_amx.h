/* The tile product by AMX: a packed block is two weight tiles as it lies in memory, and up to 32
 * rows cost what one costs. Rows of a tile are independent, so their number changes no sum. */
#ifndef BD_TILE_H
#define BD_TILE_H

#include "expand.h"
#include "expand_groups.h"
#include "vec.h"

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BD_TILE_ROWS 32

/* Rows the tile registers are shaped for in this thread; 0: not shaped yet. */
static _Thread_local int bd_shaped_rows = 0;

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} bd_tile_shape;

/* Macros: the intrinsics paste a tile's number into its register's name. */
#define SUM_A_LOW 0
#define SUM_A_HIGH 1
#define SUM_B_LOW 2
#define SUM_B_HIGH 3
#define ROWS_A 4
#define ROWS_B 5
#define WEIGHT_LOW 6
#define WEIGHT_HIGH 7

/* Another library may have shaped the tiles since this thread's last task. */
BD_INLINE void bd_thread_begin(void) { bd_shaped_rows = 0; }

BD_INLINE void bd_thread_end(void) {
    if (bd_shaped_rows) _tile_release();
    bd_shaped_rows = 0;
}

static void bd_shape_tiles(int num_rows) {
    bd_tile_shape shape = {.palette = 1};
    int first = num_rows < 16 ? num_rows : 16;
    int second = num_rows > 16 ? num_rows - 16 : 16; /* whole ones serve for keys */
    const int rows[8] = {first, first, second, second, first, second, 16, 16};
    for (int tile = 0; tile < 8; tile++) {
        shape.rows[tile] = (uint8_t)rows[tile];
        shape.row_bytes[tile] = 64;
    }
    _tile_loadconfig(&shape);
    bd_shaped_rows = num_rows;
}

BD_INLINE void bd_prefetch_step(bd_ahead *ahead) {
    for (int line = 0; line < ahead->bytes / 4; line++)
        _mm_prefetch(ahead->at + 64 * line, _MM_HINT_T0);
    ahead->at += 16 * ahead->bytes;
}

static void bd_tile_16(const uint16_t *x, size_t x_bytes, const uint16_t *block, int k_padded,
                       bd_ahead ahead, int goes_on, float *out, size_t out_bytes) {
    _tile_zero(SUM_A_LOW);
    _tile_zero(SUM_A_HIGH);
    if (goes_on) {
        _tile_loadd(SUM_A_LOW, out, out_bytes);
        _tile_loadd(SUM_A_HIGH, out + BD_LANES, out_bytes);
    }
    for (int k = 0; k < k_padded; k += 32, block += 32 * BD_BLOCK) {
        bd_prefetch_step(&ahead);
        _tile_loadd(ROWS_A, x + k, x_bytes);
        _tile_loadd(WEIGHT_LOW, block, 4 * BD_BLOCK);
        _tile_dpbf16ps(SUM_A_LOW, ROWS_A, WEIGHT_LOW);
        _tile_loadd(WEIGHT_HIGH, block + BD_BLOCK, 4 * BD_BLOCK);
        _tile_dpbf16ps(SUM_A_HIGH, ROWS_A, WEIGHT_HIGH);
    }
    _tile_stored(SUM_A_LOW, out, out_bytes);
    _tile_stored(SUM_A_HIGH, out + BD_LANES, out_bytes);
}

static void bd_tile_32(const uint16_t *x, ptrdiff_t x_stride, const uint16_t *block, int k_padded,
                       bd_ahead ahead, int goes_on, float *out, ptrdiff_t out_stride) {
    size_t x_bytes = 2 * (size_t)x_stride, out_bytes = 4 * (size_t)out_stride;
    const uint16_t *x_b = x + 16 * x_stride;
    float *out_b = out + 16 * out_stride;
    _tile_zero(SUM_A_LOW);
    _tile_zero(SUM_A_HIGH);
    _tile_zero(SUM_B_LOW);
    _tile_zero(SUM_B_HIGH);
    if (goes_on) {
        _tile_loadd(SUM_A_LOW, out, out_bytes);
        _tile_loadd(SUM_A_HIGH, out + BD_LANES, out_bytes);
        _tile_loadd(SUM_B_LOW, out_b, out_bytes);
        _tile_loadd(SUM_B_HIGH, out_b + BD_LANES, out_bytes);
    }
    for (int k = 0; k < k_padded; k += 32, block += 32 * BD_BLOCK) {
        bd_prefetch_step(&ahead);
        _tile_loadd(ROWS_A, x + k, x_bytes);
        _tile_loadd(ROWS_B, x_b + k, x_bytes);
        _tile_loadd(WEIGHT_LOW, block, 4 * BD_BLOCK);
        _tile_dpbf16ps(SUM_A_LOW, ROWS_A, WEIGHT_LOW);
        _tile_dpbf16ps(SUM_B_LOW, ROWS_B, WEIGHT_LOW);
        _tile_loadd(WEIGHT_HIGH, block + BD_BLOCK, 4 * BD_BLOCK);
        _tile_dpbf16ps(SUM_A_HIGH, ROWS_A, WEIGHT_HIGH);
        _tile_dpbf16ps(SUM_B_HIGH, ROWS_B, WEIGHT_HIGH);
    }
    _tile_stored(SUM_A_LOW, out, out_bytes);
    _tile_stored(SUM_A_HIGH, out + BD_LANES, out_bytes);
    _tile_stored(SUM_B_LOW, out_b, out_bytes);
    _tile_stored(SUM_B_HIGH, out_b + BD_LANES, out_bytes);
}

static void bd_tile(const uint16_t *x, ptrdiff_t x_stride, int num_rows, const uint16_t *block,
                    int k_padded, bd_ahead ahead, int goes_on, float *out, ptrdiff_t out_stride) {
    if (bd_shaped_rows != num_rows) bd_shape_tiles(num_rows);
    if (num_rows <= 16)
        bd_tile_16(x, 2 * (size_t)x_stride, block, k_padded, ahead, goes_on, out,
                   4 * (size_t)out_stride);
    else
        bd_tile_32(x, x_stride, block, k_padded, ahead, goes_on, out, out_stride);
}

#define BD_TILE_TAKES_KEYS 1

/* Four columns of sixteen rows, transposed. */
BD_INLINE void bd_columns(const float *rows, __m512 column[4]) {
    __m512 r[4], t[4];
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_castps128_ps512(_mm_loadu_ps(rows + 16 * i));
        r[i] = _mm512_insertf32x4(r[i], _mm_loadu_ps(rows + 16 * (4 + i)), 1);
        r[i] = _mm512_insertf32x4(r[i], _mm_loadu_ps(rows + 16 * (8 + i)), 2);
        r[i] = _mm512_insertf32x4(r[i], _mm_loadu_ps(rows + 16 * (12 + i)), 3);
    }
    t[0] = _mm512_unpacklo_ps(r[0], r[1]);
    t[1] = _mm512_unpackhi_ps(r[0], r[1]);
    t[2] = _mm512_unpacklo_ps(r[2], r[3]);
    t[3] = _mm512_unpackhi_ps(r[2], r[3]);
    column[0] = _mm512_shuffle_ps(t[0], t[2], 0x44);
    column[1] = _mm512_shuffle_ps(t[0], t[2], 0xee);
    column[2] = _mm512_shuffle_ps(t[1], t[3], 0x44);
    column[3] = _mm512_shuffle_ps(t[1], t[3], 0xee);
}

/* Sixteen keys as they lie in memory, times up to sixteen queries packed [k_padded / 2][16][2]:
 * out[query][0..15]. */
static void bd_key_tile(const uint16_t *keys, ptrdiff_t stride, const uint16_t *queries,
                        int k_padded, int num_queries, float *out, ptrdiff_t out_stride) {
    _Alignas(64) float products[16 * 16];
    if (bd_shaped_rows == 0 || (bd_shaped_rows > 16 && bd_shaped_rows < 32)) bd_shape_tiles(32);
    _tile_zero(SUM_B_LOW);
    for (int k = 0; k < k_padded; k += 32, queries += 32 * 16) {
        _tile_loadd(ROWS_B, keys + k, 2 * (size_t)stride);
        _tile_loadd(WEIGHT_LOW, queries, 64);
        _tile_dpbf16ps(SUM_B_LOW, ROWS_B, WEIGHT_LOW);
    }
    _tile_stored(SUM_B_LOW, products, 64);
    for (int query = 0; query < num_queries; query += 4) {
        __m512 column[4];
        bd_columns(products + query, column);
        for (int i = 0; i < 4 && query + i < num_queries; i++)
            _mm512_storeu_ps(out + (query + i) * out_stride, column[i]);
    }
}

#define BD_TILE_EXPANDS 1

/* One step's weights to bfloat16; returns where the next step's lie. */
BD_INLINE const uint8_t *bd_expand_step(const int kind, const bd_tables *tables,
                                        const uint8_t *from, uint16_t *to) {
    if (kind == BD_WEIGHTS_GROUP4) {
        bd_expand_group4(from, to);
        return from + BD_GROUP4_BYTES;
    }
    if (kind == BD_WEIGHTS_GROUP8) {
        bd_expand_group8(from, to);
        return from + BD_GROUP8_BYTES;
    }
    for (int pair = 0; pair < 16; pair++, from += 64, to += 64) {
        __m512i first, second;
        bd_expand_pair(tables, from, &first, &second);
        _mm512_storeu_si512(to, first);
        _mm512_storeu_si512(to + 32, second);
    }
    return from;
}

/* Expands weights step by step while the matrix unit works on the step before. A tile cannot be
 * loaded from registers, so they pass through `expanded`, where other rows find them if it is to
 * keep them; else two steps take turns, which stay in the first-level cache. */
BD_INLINE void bd_tile_steps(const int kind, const uint16_t *x, ptrdiff_t x_stride, int num_rows,
                             const uint8_t *packed, int k_padded, uint16_t *expanded, int keeps,
                             int goes_on, float *out, ptrdiff_t out_stride) {
    size_t x_bytes = 2 * (size_t)x_stride, out_bytes = 4 * (size_t)out_stride;
    const uint16_t *x_b = x + 16 * x_stride;
    float *out_b = out + 16 * out_stride;
    int is_high = num_rows > 16;
    bd_tables tables = bd_load_tables();
    if (bd_shaped_rows != num_rows) bd_shape_tiles(num_rows);
    _tile_zero(SUM_A_LOW);
    _tile_zero(SUM_A_HIGH);
    _tile_zero(SUM_B_LOW);
    _tile_zero(SUM_B_HIGH);
    if (goes_on) {
        _tile_loadd(SUM_A_LOW, out, out_bytes);
        _tile_loadd(SUM_A_HIGH, out + BD_LANES, out_bytes);
        if (is_high) {
            _tile_loadd(SUM_B_LOW, out_b, out_bytes);
            _tile_loadd(SUM_B_HIGH, out_b + BD_LANES, out_bytes);
        }
    }
    for (int k = 0; k < k_padded; k += 32) {
        uint16_t *weights = expanded + (keeps ? k : k % 64) * BD_BLOCK;
        packed = bd_expand_step(kind, &tables, packed, weights);
        /* Tile loads do not tell the compiler what they read. */
        __asm__ volatile("" ::: "memory");
        _tile_loadd(ROWS_A, x + k, x_bytes);
        _tile_loadd(WEIGHT_LOW, weights, 4 * BD_BLOCK);
        _tile_loadd(WEIGHT_HIGH, weights + BD_BLOCK, 4 * BD_BLOCK);
        _tile_dpbf16ps(SUM_A_LOW, ROWS_A, WEIGHT_LOW);
        _tile_dpbf16ps(SUM_A_HIGH, ROWS_A, WEIGHT_HIGH);
        if (!is_high) continue;
        _tile_loadd(ROWS_B, x_b + k, x_bytes);
        _tile_dpbf16ps(SUM_B_LOW, ROWS_B, WEIGHT_LOW);
        _tile_dpbf16ps(SUM_B_HIGH, ROWS_B, WEIGHT_HIGH);
    }
    _tile_stored(SUM_A_LOW, out, out_bytes);
    _tile_stored(SUM_A_HIGH, out + BD_LANES, out_bytes);
    if (!is_high) return;
    _tile_stored(SUM_B_LOW, out_b, out_bytes);
    _tile_stored(SUM_B_HIGH, out_b + BD_LANES, out_bytes);
}

static void bd_tile_expanding(int kind, const uint16_t *x, ptrdiff_t x_stride, int num_rows,
                              const uint8_t *packed, int k_padded, uint16_t *expanded, int keeps,
                              int goes_on, float *out, ptrdiff_t out_stride) {
#define CASE(kind) \
    case kind: \
        bd_tile_steps(kind, x, x_stride, num_rows, packed, k_padded, expanded, keeps, goes_on, \
                      out, out_stride); \
        break
    switch (kind) {
        CASE(BD_WEIGHTS_GROUP4);
        CASE(BD_WEIGHTS_GROUP8);
        default:
            bd_tile_steps(BD_WEIGHTS_INT8, x, x_stride, num_rows, packed, k_padded, expanded, keeps,
                          goes_on, out, out_stride);
    }
#undef CASE
}

#endif
