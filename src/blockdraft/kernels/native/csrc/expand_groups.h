/* Groups of quantised weights to bfloat16(scale * integer + offset), rounded to nearest even.
 *
 * A scale and an offset are of 32 consecutive inputs of one output. Both are halves, as a GGUF file
 * holds them; scale * integer is exact in float32, so the sum is rounded once whether or not it is
 * fused. The groups of 32 outputs lie together: 32 scales, 32 offsets, and the integers,
 *   group4  [8 fours of inputs][8 outputs][2 inputs][4 bytes], a byte holding two integers, low
 *           four bits first: those of outputs +0, +8, +16, +24, then of the next two inputs
 *   group8  [16 pairs of inputs][4 times 8 outputs][8 outputs][2 inputs], an integer a byte
 * which is the order in which lanes of 16 numbers come out as packed pairs. */
#ifndef BD_EXPAND_GROUPS_H
#define BD_EXPAND_GROUPS_H

#include "bd.h"
#include "vec.h"

#define BD_GROUP 32
#define BD_GROUP_HEADER 128 /* bytes of 32 scales and 32 offsets */
#define BD_GROUP4_BYTES (BD_GROUP_HEADER + 512)
#define BD_GROUP8_BYTES (BD_GROUP_HEADER + 1024)

#if defined(__AVX512BF16__)

/* Line by line, what will be expanded a few groups later. */
#define BD_GROUPS_AHEAD 4096

/* Of four times 8 outputs, each for both inputs of a pair. */
typedef struct {
    __m512 scale[4], offset[4];
} bd_affine;

BD_INLINE bd_affine bd_load_affine(const uint8_t *from) {
    const __m512i low = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    bd_affine affine;
    for (int half = 0; half < 2; half++) {
        __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(from + 32 * half)));
        __m512 offset = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(from + 64 + 32 * half)));
        affine.scale[2 * half] = _mm512_permutexvar_ps(low, scale);
        affine.scale[2 * half + 1] = _mm512_permutexvar_ps(high, scale);
        affine.offset[2 * half] = _mm512_permutexvar_ps(low, offset);
        affine.offset[2 * half + 1] = _mm512_permutexvar_ps(high, offset);
    }
    return affine;
}

BD_INLINE void bd_store_pair(uint16_t *to, const __m512 value[4]) {
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(value[1], value[0]));
    _mm512_storeu_si512(to + BD_BLOCK, (__m512i)_mm512_cvtne2ps_pbh(value[3], value[2]));
}

BD_INLINE void bd_expand_group4(const uint8_t *from, uint16_t *to) {
    /* The look-up takes four bits of each number: shifting alone singles an integer out. */
    const __m512 integers = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    bd_affine affine = bd_load_affine(from);
    _mm_prefetch((const char *)from + BD_GROUPS_AHEAD, _MM_HINT_T0);
    _mm_prefetch((const char *)from + BD_GROUPS_AHEAD + 64, _MM_HINT_T0);
    from += BD_GROUP_HEADER;
    for (int four = 0; four < 8; four++, from += 64, to += 4 * BD_BLOCK) {
        _mm_prefetch((const char *)from + BD_GROUPS_AHEAD, _MM_HINT_T0);
        __m512i packed = _mm512_loadu_si512(from);
        __m512 value[8];
        for (int i = 0; i < 8; i++) {
            __m512 integer = _mm512_permutexvar_ps(_mm512_srli_epi32(packed, 4 * i), integers);
            value[i] = _mm512_fmadd_ps(integer, affine.scale[i % 4], affine.offset[i % 4]);
        }
        bd_store_pair(to, value);
        bd_store_pair(to + 2 * BD_BLOCK, value + 4);
    }
}

BD_INLINE void bd_expand_group8(const uint8_t *from, uint16_t *to) {
    bd_affine affine = bd_load_affine(from);
    _mm_prefetch((const char *)from + BD_GROUPS_AHEAD, _MM_HINT_T0);
    _mm_prefetch((const char *)from + BD_GROUPS_AHEAD + 64, _MM_HINT_T0);
    from += BD_GROUP_HEADER;
    for (int pair = 0; pair < 16; pair++, from += 64, to += 2 * BD_BLOCK) {
        _mm_prefetch((const char *)from + BD_GROUPS_AHEAD, _MM_HINT_T0);
        __m512 value[4];
        for (int i = 0; i < 4; i++) {
            __m512i integer = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)(from + 16 * i)));
            value[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(integer), affine.scale[i],
                                       affine.offset[i]);
        }
        bd_store_pair(to, value);
    }
}

#else

BD_INLINE float bd_widen_half(const uint8_t *from) {
    uint16_t half;
    memcpy(&half, from, sizeof half);
    int exponent = half >> 10 & 31, fraction = half & 1023;
    float magnitude = (float)fraction * 0x1p-24f; /* of a subnormal */
    if (exponent) {
        uint32_t bits = (uint32_t)(exponent + 112) << 23 | (uint32_t)fraction << 13;
        memcpy(&magnitude, &bits, sizeof bits);
    }
    return half & 0x8000 ? -magnitude : magnitude;
}

BD_INLINE void bd_expand_group(const uint8_t *from, const int is_group4, uint16_t *to) {
    float scale[BD_BLOCK], offset[BD_BLOCK];
    for (int i = 0; i < BD_BLOCK; i++) {
        scale[i] = bd_widen_half(from + 2 * i);
        offset[i] = bd_widen_half(from + 2 * (BD_BLOCK + i));
    }
    from += BD_GROUP_HEADER;
    for (int pair = 0; pair < 16; pair++, to += 2 * BD_BLOCK) {
        for (int i = 0; i < 2 * BD_BLOCK; i++) { /* lane i % 16 of eight outputs times two inputs */
            int output = i / 2, lane = i % 16, nibble = 4 * (pair % 2) + i / 16;
            int byte = is_group4 ? from[pair / 2 * 64 + 4 * lane + nibble / 2] >> 4 * (nibble % 2)
                                 : from[pair * 64 + i];
            int integer = is_group4 ? byte & 15 : byte;
            to[i] = bd_narrow((float)integer * scale[output] + offset[output]);
        }
    }
}

BD_INLINE void bd_expand_group4(const uint8_t *from, uint16_t *to) { bd_expand_group(from, 1, to); }
BD_INLINE void bd_expand_group8(const uint8_t *from, uint16_t *to) { bd_expand_group(from, 0, to); }

#endif

static void bd_expand_groups4(const uint8_t *from, int k_padded, uint16_t *to) {
    for (int k = 0; k < k_padded; k += BD_GROUP, from += BD_GROUP4_BYTES, to += BD_GROUP * BD_BLOCK)
        bd_expand_group4(from, to);
}

static void bd_expand_groups8(const uint8_t *from, int k_padded, uint16_t *to) {
    for (int k = 0; k < k_padded; k += BD_GROUP, from += BD_GROUP8_BYTES, to += BD_GROUP * BD_BLOCK)
        bd_expand_group8(from, to);
}

#endif
