/* Rows of keys and values, and how they become the operands of tile products. */
#ifndef BD_KEY_ROWS_H
#define BD_KEY_ROWS_H

#include "kernels.h"
#include "vec.h"

/* Row `position` of keys or of values. */
BD_INLINE const uint16_t *bd_row_at(const uint16_t *cache, const uint16_t *block,
                                    const bd_keys *keys, int position) {
    return position < keys->boundary ? cache + (ptrdiff_t)position * keys->stride
                                     : block + (ptrdiff_t)(position - keys->boundary) * keys->stride;
}

/* The rows that are attended next are asked for by hand, in the order in which they lie in memory:
 * then the hardware prefetcher joins in, which follows no short runs of rows that lie apart. Row
 * `first` counts within the chunk. */
BD_INLINE void bd_prefetch_rows(const uint16_t *cache, const bd_keys *keys, int first, int count,
                                int head_dim) {
    int last = first + count < keys->next_end ? first + count : keys->next_end;
    const char *from = (const char *)(cache + keys->next + (ptrdiff_t)first * head_dim);
    const char *to = (const char *)(cache + keys->next + (ptrdiff_t)last * head_dim);
    for (; from < to; from += 64) __builtin_prefetch(from, 0, 2);
}

#if defined(__clang__) || __GNUC__ >= 12
#define BD_INTERLEAVE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#define BD_INTERLEAVE_16(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define BD_INTERLEAVE(a, b, ...) __builtin_shuffle(a, b, (bd_u32v){__VA_ARGS__})
#define BD_INTERLEAVE_16(a, b, ...) __builtin_shuffle(a, b, (bd_u16w){__VA_ARGS__})
#endif
#define BD_LOW_HALVES 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define BD_HIGH_HALVES 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31

#define BD_FIRST_16 \
    0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 8, 40, 9, 41, 10, 42, 11, 43, 12, 44, \
        13, 45, 14, 46, 15, 47
#define BD_LAST_16 \
    16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55, 24, 56, 25, 57, 26, 58, 27, \
        59, 28, 60, 29, 61, 30, 62, 31, 63

typedef uint16_t bd_u16w __attribute__((vector_size(64)));

/* A square of sixteen 32-bit numbers a side, transposed: out row i at i * out_stride. */
static void bd_transpose(const uint32_t in[16][16], uint32_t *out, ptrdiff_t out_stride) {
    bd_u32v a[16], b[16];
    memcpy(a, in, sizeof a);
    /* Four perfect shuffles of rows i and i + 8 bring every element to its mirrored place. */
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 8; i++) {
            b[2 * i] = BD_INTERLEAVE(a[i], a[i + 8], BD_LOW_HALVES);
            b[2 * i + 1] = BD_INTERLEAVE(a[i], a[i + 8], BD_HIGH_HALVES);
        }
        memcpy(a, b, sizeof a);
    }
    for (int i = 0; i < 16; i++) memcpy(out + i * out_stride, &a[i], sizeof a[i]);
}

/* Two rows of 32 numbers as pairs: one pair of inputs of 32 outputs. */
BD_INLINE void bd_interleave_rows(const uint16_t *first, const uint16_t *second, uint16_t *out) {
    bd_u16w a, b, low, high;
    memcpy(&a, first, sizeof a);
    memcpy(&b, second, sizeof b);
    low = BD_INTERLEAVE_16(a, b, BD_FIRST_16);
    high = BD_INTERLEAVE_16(a, b, BD_LAST_16);
    memcpy(out, &low, sizeof low);
    memcpy(out + 32, &high, sizeof high);
}

/* The same of the last rows' ends: zeros behind `width`. */
static void bd_interleave_ends(const uint16_t *first, const uint16_t *second, int width,
                               uint16_t *out) {
    uint16_t a[32] = {0}, b[32] = {0};
    if (width > 0) {
        memcpy(a, first, (size_t)width * sizeof *a);
        memcpy(b, second, (size_t)width * sizeof *b);
    }
    bd_interleave_rows(a, b, out);
}

/* Pack values of keys [first, first + 2) as input pair `pair` of every output; zeros where a key
 * does not exist. */
BD_INLINE void bd_pack_value_pair(const bd_keys *keys, int first, int pair, int head_dim,
                                  int dim_padded, uint16_t *to) {
    static const uint16_t zeros[BD_MAX_HEAD_DIM];
    const uint16_t *row[2];
    bd_prefetch_rows(keys->cache_values, keys, 2 * pair, 2, head_dim);
    for (int i = 0; i < 2; i++)
        row[i] = first + i < keys->end
                     ? bd_row_at(keys->cache_values, keys->block_values, keys, first + i)
                     : zeros;
    uint16_t *out = to + (ptrdiff_t)pair * 64;
    for (int at = 0; at < dim_padded; at += 32, out += BD_KEY_CHUNK * 32) {
        if (head_dim - at >= 32)
            bd_interleave_rows(row[0] + at, row[1] + at, out);
        else
            bd_interleave_ends(row[0] + at, row[1] + at, head_dim - at, out);
    }
}

#endif
