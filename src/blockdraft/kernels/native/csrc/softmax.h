/* The weights e^((x - maximum) * scale) of a row of logits: its greatest logit, and sums.
 *
 * Vectors are as wide as the registers: wider ones (vec.h) pass through memory where there is no
 * AVX-512, and make an exponential here several times as slow. A weight has the same bits in every
 * lane, and sums are those of sixteen lanes whatever the width. */
#ifndef BD_SOFTMAX_H
#define BD_SOFTMAX_H

#include "kernels.h"
#include "vec.h"

#if defined(__AVX512F__)
#define BD_WIDE 64
#elif defined(__AVX__)
#define BD_WIDE 32
#else
#define BD_WIDE 16
#endif

typedef float bd_f32w __attribute__((vector_size(BD_WIDE)));
typedef int32_t bd_i32w __attribute__((vector_size(BD_WIDE)));
typedef double bd_f64w __attribute__((vector_size(BD_WIDE)));
typedef float bd_f32n __attribute__((vector_size(BD_WIDE / 2))); /* as many as a bd_f64w */

enum {
    BD_WIDE_LANES = BD_WIDE / 4,
    BD_SCANS = 4,                         /* maxima that are kept side by side */
    BD_SUM_LANES = 16,
    BD_SUMS = BD_SUM_LANES * 8 / BD_WIDE, /* vectors that hold the sums */
};

BD_INLINE bd_f32w bd_splat_w(float value) { return value - (bd_f32w){0}; }

BD_INLINE bd_f32w bd_select_w(bd_i32w mask, bd_f32w yes, bd_f32w no) {
    return (bd_f32w)((mask & (bd_i32w)yes) | (~mask & (bd_i32w)no));
}

BD_INLINE bd_f32w bd_fma_w(bd_f32w a, bd_f32w b, bd_f32w c) {
#if defined(__AVX512F__)
    return (bd_f32w)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (bd_f32w)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

/* Some floats, and `fill` in the lanes behind them. */
BD_INLINE bd_f32w bd_load_w(const float *from, int count, float fill) {
    float lanes[BD_WIDE_LANES];
    bd_f32w v;
    if (count >= BD_WIDE_LANES) {
        memcpy(&v, from, sizeof v);
        return v;
    }
    for (int i = 0; i < BD_WIDE_LANES; i++) lanes[i] = i < count ? from[i] : fill;
    memcpy(&v, lanes, sizeof v);
    return v;
}

/* The greatest value; nan if there is one anywhere. */
static float bd_row_maximum(const float *x, int count) {
    bd_f32w best[BD_SCANS];
    bd_i32w is_nan = {0};
    for (int j = 0; j < BD_SCANS; j++) best[j] = bd_splat_w(-__builtin_inff());
    for (int i = 0; i < count; i += BD_SCANS * BD_WIDE_LANES) {
        for (int j = 0; j < BD_SCANS; j++) {
            int at = i + j * BD_WIDE_LANES;
            bd_f32w v = bd_load_w(x + at, count - at, -__builtin_inff());
            is_nan |= v != v;
            best[j] = bd_select_w(v > best[j], v, best[j]);
        }
    }
    float greatest = -__builtin_inff();
    int any_nan = 0;
    for (int lane = 0; lane < BD_WIDE_LANES; lane++) {
        any_nan |= is_nan[lane];
        for (int j = 0; j < BD_SCANS; j++)
            greatest = best[j][lane] > greatest ? best[j][lane] : greatest;
    }
    return any_nan ? __builtin_nanf("") : greatest;
}

/* e^x for x from -87 to 0: bd_exp_core in other vectors. */
BD_INLINE bd_f32w bd_exp_w(bd_f32w x) {
    const float to_int = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    bd_f32w shifted = bd_fma_w(x, bd_splat_w(1.44269504f), bd_splat_w(to_int));
    bd_f32w n = shifted - to_int;
    bd_f32w r = bd_fma_w(n, bd_splat_w(-0.693145752f), x);
    r = bd_fma_w(n, bd_splat_w(-1.42860677e-6f), r);
    bd_f32w p = bd_splat_w(1.98756912e-4f);
    p = bd_fma_w(p, r, bd_splat_w(1.39819994e-3f));
    p = bd_fma_w(p, r, bd_splat_w(8.33345205e-3f));
    p = bd_fma_w(p, r, bd_splat_w(4.16657962e-2f));
    p = bd_fma_w(p, r, bd_splat_w(1.66666655e-1f));
    p = bd_fma_w(p, r, bd_splat_w(5.00000000e-1f));
    p = bd_fma_w(p, r * r, r) + 1.0f;
    return (bd_f32w)((bd_i32w)p + ((bd_i32w)shifted << 23));
}

/* x is at most `maximum` and the scale positive, so that exponents are 0 or less; 0 below -87. */
BD_INLINE bd_f32w bd_weight(bd_f32w x, float maximum, float scale) {
    bd_f32w exponent = (x - maximum) * scale;
    bd_i32w is_some = exponent >= -87.0f;
    bd_f32w weight = bd_exp_w(bd_select_w(is_some, exponent, bd_splat_w(0.0f)));
    return bd_select_w(is_some, weight, bd_splat_w(0.0f));
}

static void bd_weigh(const float *x, int count, float maximum, float scale, float *weights) {
    for (int i = 0; i < count; i += BD_WIDE_LANES) {
        int left = count - i < BD_WIDE_LANES ? count - i : BD_WIDE_LANES;
        bd_f32w w = bd_weight(bd_load_w(x + i, left, maximum), maximum, scale);
        memcpy(weights + i, &w, (size_t)left * sizeof *weights);
    }
}

/* The sum in float64 of a span of at most `count` floats, sixteen at a time. */
BD_INLINE double bd_sum_group(const float *x, int count, float maximum, float scale) {
    bd_f64w sums[BD_SUMS];
    for (int j = 0; j < BD_SUMS; j++) sums[j] = (bd_f64w){0};
    for (int i = 0; i < count; i += BD_SUM_LANES) {
        for (int j = 0; j < BD_SUMS / 2; j++) {
            int at = i + j * BD_WIDE_LANES;
            bd_f32w w = bd_load_w(x + at, count - at, -__builtin_inff());
            bd_f32n half[2];
            w = bd_weight(w, maximum, scale);
            memcpy(half, &w, sizeof half);
            sums[2 * j] += __builtin_convertvector(half[0], bd_f64w);
            sums[2 * j + 1] += __builtin_convertvector(half[1], bd_f64w);
        }
    }
    double lanes[BD_SUM_LANES];
    memcpy(lanes, sums, sizeof lanes);
    for (int width = BD_SUM_LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
    return lanes[0];
}

static void bd_sum_weights(const float *x, int count, float maximum, float scale, int group,
                           double *sums) {
    for (int g = 0, start = 0; start < count; g++, start += group) {
        int left = count - start < group ? count - start : group;
        sums[g] = bd_sum_group(x + start, left, maximum, scale);
    }
}

#endif
