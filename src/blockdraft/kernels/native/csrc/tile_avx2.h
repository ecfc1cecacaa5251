/* The tile product by AVX2 and FMA: 4 rows x 16 outputs of sums live in 8 registers. */
#ifndef BD_TILE_H
#define BD_TILE_H

#include "vec.h"

#include <immintrin.h>

#define BD_TILE_ROWS 4

#define BD_TILE_TAKES_KEYS 0
#define BD_TILE_EXPANDS 0

BD_INLINE void bd_thread_begin(void) {}
BD_INLINE void bd_thread_end(void) {}

/* A bfloat16 pair in each 32-bit lane: its even and its odd element as floats. */
BD_INLINE __m256 bd_even(__m256i pairs) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
}

BD_INLINE __m256 bd_odd(__m256i pairs) {
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000u)));
}

BD_INLINE __m256i bd_pair(const uint16_t *x) {
    int32_t pair;
    memcpy(&pair, x, sizeof pair);
    return _mm256_set1_epi32(pair);
}

/* Sixteen outputs: even inputs first, then odd, one sum for each output. */
BD_INLINE void bd_half_tile(const int num_rows, const uint16_t *x, ptrdiff_t x_stride,
                            const uint16_t *block, int k_padded, int goes_on, float *out,
                            ptrdiff_t out_stride) {
    __m256 low[BD_TILE_ROWS], high[BD_TILE_ROWS];
    for (int r = 0; r < num_rows; r++) {
        low[r] = goes_on ? _mm256_loadu_ps(out + r * out_stride) : _mm256_setzero_ps();
        high[r] = goes_on ? _mm256_loadu_ps(out + r * out_stride + 8) : _mm256_setzero_ps();
    }
    for (int k = 0; k < k_padded; k += 2, block += 2 * BD_BLOCK) {
        __m256i w_low = _mm256_loadu_si256((const __m256i *)block);
        __m256i w_high = _mm256_loadu_si256((const __m256i *)(block + BD_LANES));
        for (int r = 0; r < num_rows; r++) {
            __m256i pair = bd_pair(x + r * x_stride + k);
            low[r] = _mm256_fmadd_ps(bd_even(w_low), bd_even(pair), low[r]);
            high[r] = _mm256_fmadd_ps(bd_even(w_high), bd_even(pair), high[r]);
            low[r] = _mm256_fmadd_ps(bd_odd(w_low), bd_odd(pair), low[r]);
            high[r] = _mm256_fmadd_ps(bd_odd(w_high), bd_odd(pair), high[r]);
        }
    }
    for (int r = 0; r < num_rows; r++) {
        _mm256_storeu_ps(out + r * out_stride, low[r]);
        _mm256_storeu_ps(out + r * out_stride + 8, high[r]);
    }
}

BD_INLINE void bd_tile_rows(const int num_rows, const uint16_t *x, ptrdiff_t x_stride,
                            const uint16_t *block, int k_padded, int goes_on, float *out,
                            ptrdiff_t out_stride) {
    bd_half_tile(num_rows, x, x_stride, block, k_padded, goes_on, out, out_stride);
    bd_half_tile(num_rows, x, x_stride, block + BD_BLOCK, k_padded, goes_on, out + BD_LANES,
                 out_stride);
}

static void bd_tile(const uint16_t *x, ptrdiff_t x_stride, int num_rows, const uint16_t *block,
                    int k_padded, bd_ahead ahead, int goes_on, float *out, ptrdiff_t out_stride) {
    (void)ahead; /* the hardware prefetcher keeps up with the arithmetic */
#define CASE(n) \
    case n: bd_tile_rows(n, x, x_stride, block, k_padded, goes_on, out, out_stride); break
    switch (num_rows) {
        CASE(1);
        CASE(2);
        CASE(3);
        default: bd_tile_rows(4, x, x_stride, block, k_padded, goes_on, out, out_stride);
    }
#undef CASE
}

#endif
