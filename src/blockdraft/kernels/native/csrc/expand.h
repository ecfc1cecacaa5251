/* A block of int8 weights to bfloat16, which holds integers of 8 bits exactly.
 *
 * A weight is a byte of sign and magnitude. The 64 weights of two inputs lie as [4][2 halves]
 * [4 outputs][2 inputs], the order in which unpacking low and high bytes leaves them packed. */
#ifndef BD_EXPAND_H
#define BD_EXPAND_H

#include "bd.h"
#include "vec.h"

#define BD_EXPAND_AHEAD 2048

#if defined(__AVX512VBMI__)

/* Low and high byte of the bfloat16 of 0..127. */
static uint8_t bd_low_bytes[128], bd_high_bytes[128];

__attribute__((constructor)) static void bd_fill_tables(void) {
    for (int i = 0; i < 128; i++) {
        uint16_t value = bd_narrow((float)i);
        bd_low_bytes[i] = (uint8_t)(value & 0xff);
        bd_high_bytes[i] = (uint8_t)(value >> 8);
    }
}

typedef struct {
    __m512i low[2], high[2], sign;
} bd_tables;

BD_INLINE bd_tables bd_load_tables(void) {
    return (bd_tables){
        {_mm512_loadu_si512(bd_low_bytes), _mm512_loadu_si512(bd_low_bytes + 64)},
        {_mm512_loadu_si512(bd_high_bytes), _mm512_loadu_si512(bd_high_bytes + 64)},
        _mm512_set1_epi8((char)0x80),
    };
}

/* The weights of two inputs: outputs 0..15 and 16..31. */
BD_INLINE void bd_expand_pair(const bd_tables *tables, const uint8_t *from, __m512i *first,
                              __m512i *second) {
    _mm_prefetch((const char *)from + BD_EXPAND_AHEAD, _MM_HINT_T0);
    __m512i weights = _mm512_loadu_si512(from);
    /* The look-up takes seven bits of each byte: the magnitude. */
    __m512i low = _mm512_permutex2var_epi8(tables->low[0], weights, tables->low[1]);
    __m512i high = _mm512_permutex2var_epi8(tables->high[0], weights, tables->high[1]);
    high = _mm512_or_si512(high, _mm512_and_si512(weights, tables->sign));
    *first = _mm512_unpacklo_epi8(low, high);
    *second = _mm512_unpackhi_epi8(low, high);
}

static void bd_expand(const uint8_t *from, int k_padded, uint16_t *to) {
    bd_tables tables = bd_load_tables();
    for (int k = 0; k < k_padded; k += 2, from += 64, to += 64) {
        __m512i first, second;
        bd_expand_pair(&tables, from, &first, &second);
        _mm512_storeu_si512(to, first);
        _mm512_storeu_si512(to + 32, second);
    }
}

#else

static uint16_t bd_bf16_of_byte[256];

__attribute__((constructor)) static void bd_fill_tables(void) {
    for (int i = 0; i < 256; i++)
        bd_bf16_of_byte[i] = bd_narrow(i < 128 ? (float)i : -(float)(i - 128));
}

static void bd_expand(const uint8_t *from, int k_padded, uint16_t *to) {
    for (int k = 0; k < k_padded; k += 2, from += 64, to += 64) {
        __builtin_prefetch((const char *)from + BD_EXPAND_AHEAD);
        for (int part = 0; part < 4; part++) {
            for (int i = 0; i < 8; i++) {
                to[part * 8 + i] = bd_bf16_of_byte[from[part * 16 + i]];
                to[32 + part * 8 + i] = bd_bf16_of_byte[from[part * 16 + 8 + i]];
            }
        }
    }
}

#endif

#endif
