/* Sixteen floats at a time, in the compiler's own vector type: one source for every instruction
 * set, and one order of sums. The compiler splits a vector where registers are narrower. */
#ifndef BD_VEC_H
#define BD_VEC_H

#include <stdint.h>
#include <string.h>
#if defined(__AVX512F__) || defined(__FMA__)
#include <immintrin.h>
#endif

typedef float bd_f32v __attribute__((vector_size(64)));
typedef int32_t bd_i32v __attribute__((vector_size(64)));
typedef uint32_t bd_u32v __attribute__((vector_size(64)));
typedef uint16_t bd_u16v __attribute__((vector_size(32)));

#define BD_INLINE static inline __attribute__((always_inline))

static const bd_i32v BD_LANE_INDEX = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

BD_INLINE bd_f32v bd_load(const float *from) {
    bd_f32v v;
    memcpy(&v, from, sizeof v);
    return v;
}

BD_INLINE void bd_store(float *to, bd_f32v v) { memcpy(to, &v, sizeof v); }

BD_INLINE bd_f32v bd_splat(float value) { return value - (bd_f32v){0}; }

BD_INLINE bd_f32v bd_select(bd_i32v mask, bd_f32v yes, bd_f32v no) {
    return (bd_f32v)((mask & (bd_i32v)yes) | (~mask & (bd_i32v)no));
}

/* What will be needed soon: `bytes` more of it for every pair of inputs (128 bytes of weights). */
typedef struct {
    const char *at;
    int bytes; /* 128, or less where weights are quantised; 0 for nothing */
} bd_ahead;

/* a * b + c, rounded once where the instruction set can. */
BD_INLINE bd_f32v bd_fma(bd_f32v a, bd_f32v b, bd_f32v c) {
#if defined(__AVX512F__)
    return (bd_f32v)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    bd_f32v result;
    for (int half = 0; half < 2; half++) {
        __m256 x, y, z;
        memcpy(&x, (const char *)&a + 32 * half, sizeof x);
        memcpy(&y, (const char *)&b + 32 * half, sizeof y);
        memcpy(&z, (const char *)&c + 32 * half, sizeof z);
        x = _mm256_fmadd_ps(x, y, z);
        memcpy((char *)&result + 32 * half, &x, sizeof x);
    }
    return result;
#else
    return a * b + c;
#endif
}

/* Sum and maximum over the lanes, always by the same tree. */
BD_INLINE float bd_sum(bd_f32v v) {
    float lane[BD_LANES];
    bd_store(lane, v);
    for (int width = BD_LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) lane[i] += lane[i + width];
    return lane[0];
}

BD_INLINE float bd_max(bd_f32v v) {
    float lane[BD_LANES];
    bd_store(lane, v);
    for (int width = BD_LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            lane[i] = lane[i] < lane[i + width] ? lane[i + width] : lane[i];
    return lane[0];
}

/* e^x for finite x from -87 to 88, to about one unit in the last place. */
BD_INLINE bd_f32v bd_exp_core(bd_f32v x) {
    const float to_int = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    bd_f32v shifted = bd_fma(x, bd_splat(1.44269504f), bd_splat(to_int));
    bd_f32v n = shifted - to_int;
    bd_f32v r = bd_fma(n, bd_splat(-0.693145752f), x);
    r = bd_fma(n, bd_splat(-1.42860677e-6f), r);
    bd_f32v p = bd_splat(1.98756912e-4f);
    p = bd_fma(p, r, bd_splat(1.39819994e-3f));
    p = bd_fma(p, r, bd_splat(8.33345205e-3f));
    p = bd_fma(p, r, bd_splat(4.16657962e-2f));
    p = bd_fma(p, r, bd_splat(1.66666655e-1f));
    p = bd_fma(p, r, bd_splat(5.00000000e-1f));
    p = bd_fma(p, r * r, r) + 1.0f;
    return (bd_f32v)((bd_i32v)p + ((bd_i32v)shifted << 23));
}

/* e^x; 0 below -87, inf above 88, nan stays nan. */
BD_INLINE bd_f32v bd_exp(bd_f32v x) {
    bd_i32v is_usual = (x >= -87.0f) & (x <= 88.0f);
    bd_f32v unusual = bd_select(x > 88.0f, bd_splat(__builtin_inff()), bd_splat(0.0f));
    unusual = bd_select(x != x, x, unusual);
    return bd_select(is_usual, bd_exp_core(bd_select(is_usual, x, bd_splat(0.0f))), unusual);
}

/* bfloat16, rounded to nearest even; nan stays nan. */
BD_INLINE bd_u16v bd_round(bd_f32v v) {
    bd_u32v bits = (bd_u32v)v;
    bd_u32v rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    bd_u32v is_nan = (bd_u32v)(v != v);
    rounded = (is_nan & 0x7fc0u) | (~is_nan & rounded);
    return __builtin_convertvector(rounded, bd_u16v);
}

BD_INLINE void bd_store_bf16(uint16_t *to, bd_f32v v) {
    bd_u16v rounded = bd_round(v);
    memcpy(to, &rounded, sizeof rounded);
}

BD_INLINE bd_f32v bd_load_bf16(const uint16_t *from) {
    bd_u16v raw;
    memcpy(&raw, from, sizeof raw);
    return (bd_f32v)(__builtin_convertvector(raw, bd_u32v) << 16);
}

BD_INLINE float bd_widen(uint16_t value) {
    uint32_t bits = (uint32_t)value << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

BD_INLINE uint16_t bd_narrow(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value) return 0x7fc0;
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

#endif
