/* Rejection sampling at a temperature above 0, out of the logits: no vector of probabilities is
 * ever made, and rows behind the first refusal are not looked at. A sequence's result is a function
 * of its own rows alone.
 *
 * A token's weight is e^((x - greatest) / temperature) in float32, its probability weight / total
 * in float64. Sums are those of groups of neighbours: a draw finds its group, then its id. */
#include <math.h>
#include <string.h>

#include "run.h"

#define MAX_GROUPS 1024
#define MAX_GROUP 1024
#define GROUP_STEP 64 /* of which groups are whole multiples, but for the last */

typedef struct {
    const bd_kernels *kernels;
    const float *x;
    int vocab_size, group, num_groups;
    float maximum, scale;
    double total, sums[MAX_GROUPS];
} bd_row;

/* q of one slot: its support, and the masses there. */
typedef struct {
    const int64_t *ids;
    const float *masses;
    int count;
} bd_support;

typedef struct {
    const bd_kernels *kernels;
    const float *logits;
    const bd_sampled *sampled; /* NULL where masses are asked for */
    int vocab_size, count;
    const int64_t *rows, *ids;
    const double *temperatures;
    double *masses;
    uint8_t *is_bad; /* where only that is asked */
    bd_counter counter;
    atomic_int status;
} bd_job;

static int group_of(int vocab_size) {
    return bd_round_up((vocab_size + MAX_GROUPS - 1) / MAX_GROUPS, GROUP_STEP);
}

static double sum_groups(const bd_row *row) {
    double total = 0.0;
    for (int g = 0; g < row->num_groups; g++) total += row->sums[g];
    return total;
}

/* BD_ERROR_NO_MASS if no token can be drawn: nan or inf among the logits, or -inf everywhere. */
static int weigh_row(const bd_job *job, int64_t index, double temperature, bd_row *row) {
    row->kernels = job->kernels;
    row->x = job->logits + (ptrdiff_t)index * job->vocab_size;
    row->vocab_size = job->vocab_size;
    row->group = group_of(job->vocab_size);
    row->num_groups = (job->vocab_size + row->group - 1) / row->group;
    row->scale = (float)(1.0 / temperature);
    row->maximum = row->kernels->row_maximum(row->x, row->vocab_size);
    if (!isfinite(row->maximum)) return BD_ERROR_NO_MASS;
    row->kernels->sum_weights(row->x, row->vocab_size, row->maximum, row->scale, row->group,
                              row->sums);
    row->total = sum_groups(row);
    return BD_OK;
}

static double mass_of(const bd_row *row, int64_t id) {
    float weight;
    row->kernels->weigh(row->x + id, 1, row->maximum, row->scale, &weight);
    return (double)weight / row->total;
}

/* What may be drawn of group g: max(weight - q * total, 0). Returns how many ids there are. */
static int weights_left(const bd_row *row, const bd_support *q, int g, double *left) {
    float weights[MAX_GROUP];
    int start = g * row->group;
    int count = row->vocab_size - start < row->group ? row->vocab_size - start : row->group;
    row->kernels->weigh(row->x + start, count, row->maximum, row->scale, weights);
    for (int i = 0; i < count; i++) left[i] = weights[i];
    for (int i = 0; i < q->count; i++) {
        int64_t at = q->ids[i] - start; /* an id may occur twice: its masses add up */
        if (at >= 0 && at < count) left[at] -= (double)q->masses[i] * row->total;
    }
    for (int i = 0; i < count; i++) left[i] = left[i] > 0.0 ? left[i] : 0.0;
    return count;
}

static int is_first_of_group(const bd_support *q, int index, int group) {
    for (int i = 0; i < index; i++)
        if (q->ids[i] / group == q->ids[index] / group) return 0;
    return 1;
}

/* Take q off the sums; if nothing is left, which only rounding can do, p stays as it was. */
static void take(bd_row *row, bd_support *q) {
    double before[MAX_GROUPS], left[MAX_GROUP];
    memcpy(before, row->sums, (size_t)row->num_groups * sizeof *before);
    for (int i = 0; i < q->count; i++) {
        if (!is_first_of_group(q, i, row->group)) continue;
        int g = (int)(q->ids[i] / row->group), count = weights_left(row, q, g, left);
        double sum = 0.0;
        for (int j = 0; j < count; j++) sum += left[j];
        row->sums[g] = sum;
    }
    if (sum_groups(row) > 0.0) return;
    memcpy(row->sums, before, (size_t)row->num_groups * sizeof *before);
    q->count = 0;
}

/* The first id whose cumulative weight exceeds u times the total: its own weight is above 0. */
static int64_t draw(const bd_row *row, const bd_support *q, double u) {
    double total = sum_groups(row), target = u * total, left[MAX_GROUP];
    double before = 0.0, inside = 0.0;
    int g = 0, last = 0;
    if (target >= total) target = total * (1.0 - 0x1p-53); /* it was rounded up */
    while (before + row->sums[g] <= target) before += row->sums[g++];
    int count = weights_left(row, q, g, left);
    for (int i = 0; i < count; i++) {
        inside += left[i];
        if (left[i] > 0.0) last = i;
        if (inside > target - before) break;
    }
    return (int64_t)g * row->group + last;
}

static int is_unit(double u) { return u >= 0.0 && u < 1.0; }

/* q of a slot: a point mass at the draft where no support is given. */
static bd_support support_at(const bd_sampled *sampled, ptrdiff_t at) {
    static const float one = 1.0f;
    if (sampled->q_ids == NULL) return (bd_support){sampled->draft_ids + at, &one, 1};
    ptrdiff_t first = at * sampled->num_support;
    return (bd_support){sampled->q_ids + first, sampled->q_masses + first, sampled->num_support};
}

static double q_of(const bd_support *q, int64_t id) {
    double sum = 0.0;
    for (int i = 0; i < q->count; i++)
        if (q->ids[i] == id) sum += q->masses[i];
    return sum;
}

static int check_slot(const bd_job *job, ptrdiff_t at) {
    int64_t id = job->sampled->draft_ids[at];
    bd_support q = support_at(job->sampled, at);
    if (id < 0 || id >= job->vocab_size || !is_unit(job->sampled->coins[at]))
        return BD_ERROR_ARGUMENT;
    for (int i = 0; i < q.count; i++)
        if (q.ids[i] < 0 || q.ids[i] >= job->vocab_size) return BD_ERROR_ARGUMENT;
    return q_of(&q, id) > 0.0 ? BD_OK : BD_ERROR_IMPOSSIBLE_DRAFT;
}

/* Drafts from the left stand while coin * q < p; then one token, of what is left of p or of p. */
static int accept_sequence(const bd_job *job, int index) {
    const bd_sampled *sampled = job->sampled;
    int num_slots = sampled->num_slots, length = sampled->lens[index], slot = 0, status;
    ptrdiff_t first = (ptrdiff_t)index * num_slots;
    bd_support q = {0};
    bd_row row;
    if (length < 0 || length > num_slots) return BD_ERROR_ARGUMENT;
    if (!is_unit(sampled->residuals[index]) || !is_unit(sampled->bonuses[index]))
        return BD_ERROR_ARGUMENT;
    for (int i = 0; i < length; i++)
        if ((status = check_slot(job, first + i)) != BD_OK) return status;
    for (;; slot++) {
        status = weigh_row(job, job->rows[index] + slot, job->temperatures[index], &row);
        if (status != BD_OK) return status;
        if (slot == length) break;
        int64_t id = sampled->draft_ids[first + slot];
        q = support_at(sampled, first + slot);
        if (!(sampled->coins[first + slot] * q_of(&q, id) < mass_of(&row, id))) break;
    }
    int is_rejected = slot < length;
    if (is_rejected)
        take(&row, &q);
    else
        q.count = 0;
    sampled->accepted[index] = slot;
    sampled->next_ids[index] =
        draw(&row, &q, is_rejected ? sampled->residuals[index] : sampled->bonuses[index]);
    return BD_OK;
}

static int measure(const bd_job *job, int index) {
    bd_row row;
    if (job->ids[index] < 0 || job->ids[index] >= job->vocab_size) return BD_ERROR_ARGUMENT;
    int status = weigh_row(job, job->rows[index], job->temperatures[index], &row);
    if (status == BD_OK) job->masses[index] = mass_of(&row, job->ids[index]);
    return status;
}

static int judge_row(const bd_job *job, int index) {
    const float *x = job->logits + (ptrdiff_t)index * job->vocab_size;
    job->is_bad[index] = !isfinite(job->kernels->row_maximum(x, job->vocab_size));
    return BD_OK;
}

static void job_task(void *argument, int thread, int num_threads) {
    bd_job *job = argument;
    (void)thread, (void)num_threads;
    for (;;) {
        int index = atomic_fetch_add_explicit(&job->counter.next, 1, memory_order_relaxed);
        if (index >= job->count) return;
        int status = BD_ERROR_ARGUMENT;
        if (job->is_bad)
            status = judge_row(job, index);
        else if (job->temperatures[index] > 0.0)
            status = job->sampled ? accept_sequence(job, index) : measure(job, index);
        if (status != BD_OK) atomic_store(&job->status, status);
    }
}

static int run_job(bd_job *job) {
    if (job->kernels == NULL || job->count < 0 || job->vocab_size < 1 ||
        job->vocab_size > MAX_GROUPS * MAX_GROUP)
        return BD_ERROR_ARGUMENT;
    bd_pool_lock();
    bd_pool_run(job_task, job);
    bd_pool_unlock();
    return atomic_load(&job->status);
}

int bd_token_masses(int isa, const float *logits, int vocab_size, const int64_t *rows,
                    const double *temperatures, int count, const int64_t *ids, double *masses) {
    bd_job job = {.kernels = bd_find_kernels(isa), .logits = logits, .vocab_size = vocab_size,
                  .count = count, .rows = rows, .temperatures = temperatures, .ids = ids,
                  .masses = masses};
    return run_job(&job);
}

int bd_accept_sampled(int isa, const float *logits, int vocab_size, const int64_t *rows,
                      const double *temperatures, int count, const bd_sampled *sampled) {
    bd_job job = {.kernels = bd_find_kernels(isa), .logits = logits, .vocab_size = vocab_size,
                  .count = count, .rows = rows, .temperatures = temperatures, .sampled = sampled};
    return run_job(&job);
}

int bd_nonfinite_rows(int isa, const float *logits, int vocab_size, int num_rows,
                      uint8_t *is_bad) {
    bd_job job = {.kernels = bd_find_kernels(isa), .logits = logits, .vocab_size = vocab_size,
                  .count = num_rows, .is_bad = is_bad};
    return run_job(&job);
}
