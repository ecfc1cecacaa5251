/* The walks of DFlash 2's candidate selector: only the edges on the path are scored. */
#include <math.h>
#include <string.h>

#include "kernels.h"

enum { SUMS = 16 }; /* partial sums of a dot product: a fixed order that vectorises */

static float widen(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

static float edge(const float *left, const uint16_t *right, int rank) {
    float sums[SUMS] = {0};
    int i = 0;
    for (; i + SUMS <= rank; i += SUMS)
        for (int j = 0; j < SUMS; j++) sums[j] += left[i + j] * widen(right[i + j]);
    for (int j = 0; i < rank; i++, j++) sums[j] += left[i] * widen(right[i]);
    for (int step = SUMS / 2; step > 0; step /= 2)
        for (int j = 0; j < step; j++) sums[j] += sums[j + step];
    return sums[0];
}

/* The codebook rows are scattered over tens of megabytes: ask for all of them before the first. */
static void prefetch_rows(const uint16_t *codebook, const int64_t *rows, int count, int rank) {
    for (int i = 0; i < count; i++)
        for (int byte = 0; byte < rank * 2; byte += 64)
            __builtin_prefetch((const char *)(codebook + rows[i] * rank) + byte);
}

/* Scores of a slot's candidates after `previous`; 0 if one is not a finite number.
 *
 * score = values + <predecessors[previous] * gate, successors[candidate]> */
static int score_slot(const bd_walk *walk, ptrdiff_t at, int64_t previous, float *scores) {
    int rank = walk->rank, count = walk->num_candidates, is_finite = 1;
    const int64_t *candidates = walk->candidate_rows + at * count;
    float left[rank];
    for (int i = 0; i < rank; i++)
        left[i] = widen(walk->predecessors[previous * rank + i]) * walk->gate[at * rank + i];
    for (int c = 0; c < count; c++) {
        scores[c] = walk->values[at * count + c] +
                    edge(left, walk->successors + candidates[c] * rank, rank);
        if (!isfinite(scores[c])) is_finite = 0;
    }
    return is_finite;
}

/* The first of the greatest scores; nan is never taken if there is anything else. */
static int best_of(const float *scores, int count) {
    float best_score = -INFINITY;
    int best = 0;
    for (int c = 0; c < count; c++)
        if (scores[c] > best_score) best_score = scores[c], best = c;
    return best;
}

/* q = softmax(scores / temperature), and one candidate drawn from these very numbers. */
static int draw_from(const bd_kernels *kernels, const float *scores, int count,
                     double temperature, double u, float *q) {
    double total = 0.0, cumulative = 0.0;
    int last = 0;
    kernels->weigh(scores, count, scores[best_of(scores, count)], (float)(1.0 / temperature), q);
    for (int c = 0; c < count; c++) total += q[c];
    for (int c = 0; c < count; c++) q[c] = (float)(q[c] / total);
    total = 0.0;
    for (int c = 0; c < count; c++) total += q[c];
    for (int c = 0; c < count; c++) {
        cumulative += q[c];
        if (q[c] > 0.0f) last = c;
        if (cumulative > u * total) break;
    }
    return last;
}

static int step(const bd_walk *walk, const bd_kernels *kernels, int row, int slot,
                const float *scores) {
    int count = walk->num_candidates, best = best_of(scores, count);
    ptrdiff_t at = (ptrdiff_t)row * walk->num_slots + slot;
    if (walk->q == NULL) return best;
    float *q = walk->q + at * count;
    double temperature = walk->temperatures[row];
    if (slot < walk->finite_lens[row] && temperature > 0.0)
        return draw_from(kernels, scores, count, temperature, walk->uniforms[at], q);
    for (int c = 0; c < count; c++) q[c] = c == best ? 1.0f : 0.0f;
    return best;
}

int bd_run_walk(int isa, const bd_walk *walk) {
    const bd_kernels *kernels = bd_find_kernels(isa);
    int count = walk->num_candidates;
    if (kernels == NULL || walk->num_rows < 0 || walk->num_slots < 0 || count < 1 || walk->rank < 1)
        return BD_ERROR_ARGUMENT;
    float scores[count];
    prefetch_rows(walk->successors, walk->candidate_rows, walk->num_rows * walk->num_slots * count,
                  walk->rank);
    for (int row = 0; row < walk->num_rows; row++) {
        int64_t previous = walk->anchors[row];
        walk->finite_lens[row] = walk->num_slots;
        for (int slot = 0; slot < walk->num_slots; slot++) {
            ptrdiff_t at = (ptrdiff_t)row * walk->num_slots + slot;
            if (!score_slot(walk, at, previous, scores) && walk->finite_lens[row] > slot)
                walk->finite_lens[row] = slot;
            previous = walk->candidate_rows[at * count + step(walk, kernels, row, slot, scores)];
            walk->path[at] = walk->token_ids ? walk->token_ids[previous] : previous;
        }
    }
    return BD_OK;
}
