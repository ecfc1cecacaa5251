/* Sixteen floats at a time, in the compiler's own vector type: one source for every instruction
 * set, and one order of sums. The compiler splits a vector where registers are narrower. */
#ifndef BD_VEC_H
#define BD_VEC_H

#include <stdint.h>
#include <string.h>

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

/* e^x to about one unit in the last place; 0 below -87, nan stays nan, inf above 88. */
BD_INLINE bd_f32v bd_exp(bd_f32v x) {
    const float to_int = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    bd_i32v is_low = x < -87.0f, is_high = x > 88.0f, is_nan = x != x;
    bd_f32v safe = bd_select(is_low | is_high | is_nan, bd_splat(0.0f), x);
    bd_f32v shifted = safe * 1.44269504f + to_int;
    bd_f32v n = shifted - to_int;
    bd_f32v r = safe - n * 0.693145752f - n * 1.42860677e-6f;
    bd_f32v p = bd_splat(1.98756912e-4f);
    p = p * r + 1.39819994e-3f;
    p = p * r + 8.33345205e-3f;
    p = p * r + 4.16657962e-2f;
    p = p * r + 1.66666655e-1f;
    p = p * r + 5.00000000e-1f;
    p = p * r * r + r + 1.0f;
    bd_i32v power = ((bd_i32v)shifted - (bd_i32v)bd_splat(to_int)) << 23;
    bd_f32v result = (bd_f32v)((bd_i32v)p + power);
    result = bd_select(is_low, bd_splat(0.0f), result);
    result = bd_select(is_high, bd_splat(__builtin_inff()), result);
    return bd_select(is_nan, x, result);
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
