/* The tile product by vdpbf16ps: 8 rows x 32 outputs of sums live in 16 registers. */
#ifndef BD_TILE_H
#define BD_TILE_H

#include "expand.h"
#include "vec.h"

#include <immintrin.h>

#define BD_TILE_ROWS 8

#define BD_TILE_TAKES_KEYS 0
#define BD_TILE_EXPANDS 0

BD_INLINE void bd_thread_begin(void) {}
BD_INLINE void bd_thread_end(void) {}

BD_INLINE __m512bh bd_pair(const uint16_t *x) {
    int32_t pair;
    memcpy(&pair, x, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

/* Every row has its own two sums, whatever `num_rows` is: the order of a sum never changes. */
BD_INLINE void bd_tile_rows(const int num_rows, const uint16_t *x, ptrdiff_t x_stride,
                            const uint16_t *block, int k_padded, bd_ahead ahead, int goes_on,
                            float *out, ptrdiff_t out_stride) {
    __m512 low[BD_TILE_ROWS], high[BD_TILE_ROWS];
    for (int r = 0; r < num_rows; r++) {
        float *sums = out + r * out_stride;
        low[r] = goes_on ? _mm512_loadu_ps(sums) : _mm512_setzero_ps();
        high[r] = goes_on ? _mm512_loadu_ps(sums + BD_LANES) : _mm512_setzero_ps();
    }
    for (int k = 0; k < k_padded; k += 2, block += 2 * BD_BLOCK) {
        _mm_prefetch(ahead.at, _MM_HINT_T0);
        _mm_prefetch(ahead.at + ahead.bytes / 2, _MM_HINT_T0);
        ahead.at += ahead.bytes;
        __m512bh w_low = (__m512bh)_mm512_loadu_si512(block);
        __m512bh w_high = (__m512bh)_mm512_loadu_si512(block + BD_BLOCK);
        for (int r = 0; r < num_rows; r++) {
            __m512bh pair = bd_pair(x + r * x_stride + k);
            low[r] = _mm512_dpbf16_ps(low[r], w_low, pair);
            high[r] = _mm512_dpbf16_ps(high[r], w_high, pair);
        }
    }
    for (int r = 0; r < num_rows; r++) {
        _mm512_storeu_ps(out + r * out_stride, low[r]);
        _mm512_storeu_ps(out + r * out_stride + BD_LANES, high[r]);
    }
}

static void bd_tile(const uint16_t *x, ptrdiff_t x_stride, int num_rows, const uint16_t *block,
                    int k_padded, bd_ahead ahead, int goes_on, float *out, ptrdiff_t out_stride) {
#define CASE(n) \
    case n: \
        bd_tile_rows(n, x, x_stride, block, k_padded, ahead, goes_on, out, out_stride); \
        break
    switch (num_rows) {
        CASE(1);
        CASE(2);
        CASE(3);
        CASE(4);
        CASE(5);
        CASE(6);
        CASE(7);
        default: bd_tile_rows(8, x, x_stride, block, k_padded, ahead, goes_on, out, out_stride);
    }
#undef CASE
}

#if defined(__AVX512VBMI__)
#define BD_TILE_INT8 1

BD_INLINE void bd_tile_int8_rows(const int num_rows, const uint16_t *x, ptrdiff_t x_stride,
                                 const uint8_t *block, int k_padded, float *out,
                                 ptrdiff_t out_stride) {
    bd_tables tables = bd_load_tables();
    __m512 low[BD_TILE_ROWS], high[BD_TILE_ROWS];
    for (int r = 0; r < num_rows; r++) low[r] = high[r] = _mm512_setzero_ps();
    for (int k = 0; k < k_padded; k += 2, block += 2 * BD_BLOCK) {
        __m512i w_low, w_high;
        bd_expand_pair(&tables, block, &w_low, &w_high);
        for (int r = 0; r < num_rows; r++) {
            __m512bh pair = bd_pair(x + r * x_stride + k);
            low[r] = _mm512_dpbf16_ps(low[r], (__m512bh)w_low, pair);
            high[r] = _mm512_dpbf16_ps(high[r], (__m512bh)w_high, pair);
        }
    }
    for (int r = 0; r < num_rows; r++) {
        _mm512_storeu_ps(out + r * out_stride, low[r]);
        _mm512_storeu_ps(out + r * out_stride + BD_LANES, high[r]);
    }
}

/* The same sums, the weights expanded in registers. */
static void bd_tile_int8(const uint16_t *x, ptrdiff_t x_stride, int num_rows, const uint8_t *block,
                         int k_padded, float *out, ptrdiff_t out_stride) {
#define CASE(n) \
    case n: bd_tile_int8_rows(n, x, x_stride, block, k_padded, out, out_stride); break
    switch (num_rows) {
        CASE(1);
        CASE(2);
        CASE(3);
        CASE(4);
        CASE(5);
        CASE(6);
        CASE(7);
        default: bd_tile_int8_rows(8, x, x_stride, block, k_padded, out, out_stride);
    }
#undef CASE
}

#endif

#endif
