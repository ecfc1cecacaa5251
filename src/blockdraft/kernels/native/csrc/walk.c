/* The greedy walk of DFlash 2's candidate selector: only the edges on the path are scored. */
#include <math.h>
#include <string.h>

#include "bd.h"

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

/* Walk [num_rows][num_slots] slots of `num_candidates` each, from anchors[row] on.
 *
 * score = values + <predecessors[previous] * gate, successors[candidate]>; the best candidate is
 * taken, the first one on ties. Candidates and anchors are rows of the codebooks; the path holds
 * their token_ids, or the rows themselves if that is NULL. finite[row] is 0 if a score on the way was
 * not a finite number. */
BD_EXPORT int bd_walk_greedy(const float *gate, const float *values, const int64_t *candidate_rows,
                             const int64_t *anchors, const uint16_t *predecessors,
                             const uint16_t *successors, const int64_t *token_ids, int num_rows,
                             int num_slots, int num_candidates, int rank, int64_t *path,
                             uint8_t *finite) {
    float left[rank];
    if (num_rows < 0 || num_slots < 0 || num_candidates < 1 || rank < 1) return BD_ERROR_ARGUMENT;
    prefetch_rows(successors, candidate_rows, num_rows * num_slots * num_candidates, rank);
    for (int row = 0; row < num_rows; row++) {
        int64_t previous = anchors[row];
        finite[row] = 1;
        for (int slot = 0; slot < num_slots; slot++) {
            ptrdiff_t at = (ptrdiff_t)row * num_slots + slot;
            const int64_t *candidates = candidate_rows + at * num_candidates;
            int best = 0;
            float best_score = -INFINITY;
            for (int i = 0; i < rank; i++)
                left[i] = widen(predecessors[previous * rank + i]) * gate[at * rank + i];
            for (int c = 0; c < num_candidates; c++) {
                float score = values[at * num_candidates + c] +
                              edge(left, successors + candidates[c] * rank, rank);
                if (!isfinite(score)) finite[row] = 0;
                if (score > best_score) best_score = score, best = c;
            }
            previous = candidates[best];
            path[at] = token_ids ? token_ids[previous] : previous;
        }
    }
    return BD_OK;
}
