/* The tile product in plain C. */
#ifndef BD_TILE_H
#define BD_TILE_H

#include "vec.h"

#define BD_TILE_ROWS 8

#define BD_TILE_TAKES_KEYS 0
#define BD_TILE_EXPANDS 0

BD_INLINE void bd_thread_begin(void) {}
BD_INLINE void bd_thread_end(void) {}

/* out[r][0..31] = sum over k of x[r][k] * block[k][0..31], in the order of k.
 *
 * num_rows is 1..BD_TILE_ROWS; `block` is packed [k_padded / 2][2][16][2]. */
static void bd_tile(const uint16_t *x, ptrdiff_t x_stride, int num_rows, const uint16_t *block,
                    int k_padded, bd_ahead ahead, int goes_on, float *out, ptrdiff_t out_stride) {
    (void)ahead;
    float sum[BD_TILE_ROWS][BD_BLOCK] = {{0}};
    for (int r = 0; goes_on && r < num_rows; r++) memcpy(sum[r], out + r * out_stride, sizeof sum[r]);
    for (int k = 0; k < k_padded; k += 2, block += 2 * BD_BLOCK) {
        float even[BD_BLOCK], odd[BD_BLOCK];
        for (int i = 0; i < BD_BLOCK; i++) {
            even[i] = bd_widen(block[2 * i]);
            odd[i] = bd_widen(block[2 * i + 1]);
        }
        for (int r = 0; r < num_rows; r++) {
            float first = bd_widen(x[r * x_stride + k]);
            float second = bd_widen(x[r * x_stride + k + 1]);
            for (int i = 0; i < BD_BLOCK; i++) {
                sum[r][i] += first * even[i];
                sum[r][i] += second * odd[i];
            }
        }
    }
    for (int r = 0; r < num_rows; r++) memcpy(out + r * out_stride, sum[r], sizeof sum[r]);
}

#endif
