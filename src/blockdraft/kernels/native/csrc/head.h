/* The greatest logits of each row, without writing the others. */
#ifndef BD_HEAD_H
#define BD_HEAD_H

#include "product.h"

/* Whether any of `count` numbers is infinite or nan: its exponent bits are all ones. */
BD_INLINE int bd_any_nonfinite(const float *x, int count) {
    uint32_t any = 0;
    for (int i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        any |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return any != 0;
}

BD_INLINE int bd_any_above(const float *x, int count, float limit) {
    int any = 0;
    for (int i = 0; i < count; i++) any |= x[i] > limit;
    return any;
}

/* Insert in order; among equals the id that came first (the lower one) stays first. */
static void bd_insert(const bd_top *top, int row, float value, int64_t id) {
    float *values = top->values + (ptrdiff_t)row * top->top_k;
    int64_t *ids = top->ids + (ptrdiff_t)row * top->top_k;
    int at = top->counts[row];
    if (at == top->top_k) {
        if (!(value > values[at - 1])) return;
        at--;
    } else {
        top->counts[row]++;
    }
    for (; at > 0 && value > values[at - 1]; at--) {
        values[at] = values[at - 1];
        ids[at] = ids[at - 1];
    }
    values[at] = value;
    ids[at] = id;
}

static void bd_select_row(const bd_top *top, int row, const float *logits, int count, int64_t id) {
    if (bd_any_nonfinite(logits, count)) top->nonfinite[row] = 1;
    int is_full = top->counts[row] == top->top_k;
    float limit = is_full ? top->values[(ptrdiff_t)row * top->top_k + top->top_k - 1] : 0.0f;
    if (is_full && !bd_any_above(logits, count, limit)) return;
    for (int i = 0; i < count; i++)
        if (logits[i] == logits[i]) bd_insert(top, row, logits[i], id + i);
}

static void bd_select_top(const bd_product *product, int first, int last, const bd_top *top) {
    float sums[BD_ROWS_AT_ONCE * BD_BLOCK];
    const bd_linear *head = product->linear;
    for (int index = first; index < last; index++) {
        int columns = head->n - index * BD_BLOCK < BD_BLOCK ? head->n - index * BD_BLOCK : BD_BLOCK;
        for (int from = 0; from < product->num_rows; from += BD_ROWS_AT_ONCE) {
            int left = product->num_rows - from;
            int to = from + (left < BD_ROWS_AT_ONCE ? left : BD_ROWS_AT_ONCE);
            bd_product_block(product, from, to, index, sums);
            for (int row = from; row < to; row++)
                bd_select_row(top, row, sums + (row - from) * BD_BLOCK, columns,
                              (int64_t)index * BD_BLOCK);
        }
    }
}

#endif
