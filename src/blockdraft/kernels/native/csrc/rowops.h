/* Operations on one row: norms, rotary, number formats, convolution. */
#ifndef BD_ROWOPS_H
#define BD_ROWOPS_H

#include "kernels.h"
#include "vec.h"

/* Sum of squares in one fixed order: sixteen partial sums, then a tree. */
static float bd_sum_squares(const float *x, int width) {
    bd_f32v sum = {0};
    int i = 0;
    for (; i + BD_LANES <= width; i += BD_LANES) sum += bd_load(x + i) * bd_load(x + i);
    if (i < width) {
        float tail[BD_LANES] = {0};
        memcpy(tail, x + i, (size_t)(width - i) * sizeof(float));
        sum += bd_load(tail) * bd_load(tail);
    }
    return bd_sum(sum);
}

static float bd_inverse_rms(const float *x, int width, float eps) {
    return 1.0f / __builtin_sqrtf(bd_sum_squares(x, width) / (float)width + eps);
}

static void bd_norm_row(const float *x, const float *weight, int width, int padded, float eps,
                        uint16_t *out) {
    float scale = bd_inverse_rms(x, width, eps);
    int i = 0;
    for (; i + BD_LANES <= width; i += BD_LANES)
        bd_store_bf16(out + i, bd_load(x + i) * scale * bd_load(weight + i));
    for (; i < width; i++) out[i] = bd_narrow(x[i] * scale * weight[i]);
    for (int i = width; i < padded; i++) out[i] = 0;
}

static void bd_norm_head(float *x, const float *weight, int width, float eps) {
    float scale = bd_inverse_rms(x, width, eps);
    for (int i = 0; i < width; i++) x[i] = x[i] * scale * weight[i];
}

static void bd_rotate(const float *x, const float *cosine, const float *sine, int head_dim,
                      int padded, uint16_t *out) {
    int half = head_dim / 2, i = 0;
    for (; i + BD_LANES <= half; i += BD_LANES) {
        bd_f32v low = bd_load(x + i), high = bd_load(x + i + half);
        bd_f32v c = bd_load(cosine + i), s = bd_load(sine + i);
        bd_store_bf16(out + i, low * c - high * s);
        bd_store_bf16(out + i + half, high * c + low * s);
    }
    for (; i < half; i++) {
        out[i] = bd_narrow(x[i] * cosine[i] - x[i + half] * sine[i]);
        out[i + half] = bd_narrow(x[i + half] * cosine[i] + x[i] * sine[i]);
    }
    for (int i = head_dim; i < padded; i++) out[i] = 0;
}

static void bd_narrow_row(const float *x, int count, int padded, uint16_t *out) {
    int i = 0;
    for (; i + BD_LANES <= count; i += BD_LANES) bd_store_bf16(out + i, bd_load(x + i));
    for (; i < count; i++) out[i] = bd_narrow(x[i]);
    for (int i = count; i < padded; i++) out[i] = 0;
}

static void bd_widen_row(const uint16_t *x, int count, int padded, float scale, float *out) {
    for (int i = 0; i < count; i++) out[i] = bd_widen(x[i]) * scale;
    for (int i = count; i < padded; i++) out[i] = 0.0f;
}

/* out = (base[0] + delta[0]) * current + (base[1] + delta[1]) * previous; base is [2][width],
 * delta is [2][width / group], constant over a group of channels. */
static void bd_convolve(const float *current, const float *previous, const float *base,
                        const float *delta, int width, int group, float *out) {
    int num_groups = width / group;
    for (int g = 0; g < num_groups; g++) {
        for (int i = g * group; i < (g + 1) * group; i++) {
            float value = (base[i] + delta[g]) * current[i];
            if (previous) value += (base[width + i] + delta[num_groups + g]) * previous[i];
            out[i] = value;
        }
    }
}

#endif
