/* Attention of a whole batch: which thread attends what, and where its partial results lie.
 *
 * In the cache the rows of all heads follow each other. So a chunk of keys is attended by one head
 * after the other, and while that is done the chunk after it is asked for, in one long run. */
#include <string.h>

#include "run.h"

/* Few units and long contexts would leave threads idle; then the keys of a unit are shared too. */
#define SPLIT_UNITS_PER_THREAD 4
#define MAX_PARTIALS 4096
#define MAX_UNIT_GRAIN 32
#define RUN_PARTS_PER_THREAD 4

static int tokens_per_unit(const bd_run *run) {
    return run->group < BD_UNIT_ROWS ? BD_UNIT_ROWS / run->group : 1;
}

void bd_plan_units(bd_run *run) {
    int kv_heads = run->model->num_kv_heads, tokens = tokens_per_unit(run);
    int num_units = 0, num_partials = 0;
    for (int i = 0; i < run->num_sequences; i++) {
        const bd_sequence *sequence = &run->sequences[i];
        int end = sequence->start + sequence->num_rows;
        for (int first = 0; first < sequence->num_rows; first += tokens) {
            int left = sequence->num_rows - first;
            bd_unit unit = {i, first, left < tokens ? left : tokens, num_partials,
                            (end + BD_KEY_CHUNK - 1) / BD_KEY_CHUNK};
            if (run->units) run->units[num_units] = unit;
            num_units++;
            num_partials += unit.num_chunks * kv_heads;
        }
    }
    run->num_units = num_units;
    run->unit_rows = tokens * run->group;
    run->is_split = run->num_threads > 1 && num_partials <= MAX_PARTIALS &&
                    num_units < SPLIT_UNITS_PER_THREAD * run->num_threads;
    run->num_partials = run->is_split ? num_partials : (kv_heads + 1) * run->num_threads;
}

/* Queries and keys of one unit and one kv head. */
static bd_queries queries_of(const bd_run *run, const bd_unit *unit, int layer, int kv_head) {
    const bd_sequence *sequence = &run->sequences[unit->sequence];
    const bd_layer *l = &run->model->layers[layer];
    ptrdiff_t row = (ptrdiff_t)kv_head * run->num_rows + sequence->first_row + unit->first_token;
    return (bd_queries){
        .q = run->q + row * run->group * run->dim_padded,
        .start = sequence->start + unit->first_token,
        .num_rows = unit->num_tokens,
        .group = run->group,
        .dim_padded = run->dim_padded,
        .head_dim = run->model->head_dim,
        .window = l->window,
        .is_causal = l->is_causal,
        .scale = run->model->softmax_scale,
    };
}

static bd_keys keys_of(const bd_run *run, const bd_unit *unit, int layer, int kv_head) {
    const bd_sequence *sequence = &run->sequences[unit->sequence];
    int kv_heads = run->model->num_kv_heads, head_dim = run->model->head_dim;
    ptrdiff_t slot = (ptrdiff_t)layer * run->cache.num_slots + sequence->slot;
    ptrdiff_t cached = (slot * run->cache.max_len * kv_heads + kv_head) * head_dim;
    ptrdiff_t block = ((ptrdiff_t)sequence->first_row * kv_heads + kv_head) * head_dim;
    int end = sequence->start + sequence->num_rows;
    int keeps = run->model->keeps_rows;
    return (bd_keys){
        .cache_keys = run->cache.keys + cached,
        .cache_values = run->cache.values + cached,
        .block_keys = keeps ? NULL : run->keys + block,
        .block_values = keeps ? NULL : run->values + block,
        .stride = (ptrdiff_t)kv_heads * head_dim,
        .boundary = keeps ? end : sequence->start,
        .end = end,
    };
}

static ptrdiff_t slot_at(const bd_run *run, const bd_unit *unit) {
    return (ptrdiff_t)run->sequences[unit->sequence].slot * run->cache.max_len *
           run->model->num_kv_heads * run->model->head_dim;
}

/* A chunk of the keys of a unit. */
typedef struct {
    const bd_unit *unit; /* NULL: none */
    int chunk;
} bd_part;

/* Where the partial results of a chunk of a split unit lie, those of its first head first. */
static int unit_result(bd_part part, int kv_heads) {
    return part.unit->first_partial + part.chunk * kv_heads;
}

/* Have a chunk come while another one is attended: with each head an equal share of its rows. */
static void look_ahead(const bd_run *run, bd_part now, bd_part next, int kv_head, bd_keys *keys) {
    if (next.unit == NULL) return;
    int kv_heads = run->model->num_kv_heads, head_dim = run->model->head_dim;
    int first = next.chunk * BD_KEY_CHUNK;
    int count = run->sequences[next.unit->sequence].start - first;
    if (count > BD_KEY_CHUNK) count = BD_KEY_CHUNK;
    ptrdiff_t there = slot_at(run, next.unit) + (ptrdiff_t)first * kv_heads * head_dim;
    ptrdiff_t here = slot_at(run, now.unit) + (ptrdiff_t)kv_head * head_dim;
    keys->next = there - here + (ptrdiff_t)kv_head * count * head_dim;
    keys->next_end = count;
}

static bd_partial partial_at(const bd_run *run, int index) {
    ptrdiff_t size = (ptrdiff_t)run->unit_rows * (run->dim_padded + 2);
    float *at = run->partials + index * size;
    return (bd_partial){at, at + run->unit_rows, at + 2 * run->unit_rows};
}

/* Chunks a unit's rows can see: the last of them holds a key that the last row sees. */
static void chunk_range(const bd_queries *q, const bd_keys *keys, int *first, int *last) {
    int position = q->start + q->num_rows - 1;
    int reach = q->is_causal ? 1 : q->window ? q->window : keys->end;
    int end = keys->end - position > reach ? position + reach : keys->end;
    *first = q->window && q->start >= q->window ? (q->start - q->window + 1) / BD_KEY_CHUNK : 0;
    *last = (end + BD_KEY_CHUNK - 1) / BD_KEY_CHUNK;
}

static void finish(const bd_run *run, const bd_unit *unit, const bd_queries *q, int kv_head,
                   const bd_partial *partial) {
    ptrdiff_t row = run->sequences[unit->sequence].first_row + unit->first_token;
    uint16_t *out = run->heads + row * run->heads_padded + kv_head * run->group * q->head_dim;
    run->kernels->finish_attention(partial, q, out, run->heads_padded);
}

/* One chunk of a unit for one head; `next` is what this thread attends after all heads of it. */
static void attend_part(bd_thread *t, bd_part part, bd_part next, int layer, int kv_head,
                        const bd_partial *out) {
    const bd_run *run = t->run;
    bd_queries q = queries_of(run, part.unit, layer, kv_head);
    bd_keys keys = keys_of(run, part.unit, layer, kv_head);
    look_ahead(run, part, next, kv_head, &keys);
    run->kernels->attend_chunk(&q, &keys, part.chunk * BD_KEY_CHUNK,
                               run->scratch + t->thread * run->scratch_bytes, out);
}

/* Chunks [*first, *last) that rows of a unit can see in a layer. */
static void unit_range(const bd_run *run, const bd_unit *unit, int layer, int *first, int *last) {
    bd_queries q = queries_of(run, unit, layer, 0);
    bd_keys keys = keys_of(run, unit, layer, 0);
    chunk_range(&q, &keys, first, last);
}

/* All chunks of a unit one after the other, in this thread. */
static void attend_unit(bd_thread *t, const bd_unit *unit, int layer, const bd_unit *next_unit) {
    const bd_run *run = t->run;
    int kv_heads = run->model->num_kv_heads, first, last, next_first = 0, ignored;
    int base = t->thread * (kv_heads + 1);
    bd_partial next = partial_at(run, base + kv_heads);
    unit_range(run, unit, layer, &first, &last);
    if (next_unit) unit_range(run, next_unit, layer, &next_first, &ignored);
    for (int chunk = first; chunk < last; chunk++) {
        bd_part then = chunk + 1 < last ? (bd_part){unit, chunk + 1}
                                        : (bd_part){next_unit, next_first};
        for (int head = 0; head < kv_heads; head++) {
            bd_queries q = queries_of(run, unit, layer, head);
            bd_partial sum = partial_at(run, base + head);
            attend_part(t, (bd_part){unit, chunk}, then, layer, head,
                        chunk == first ? &sum : &next);
            if (chunk > first)
                run->kernels->fold_partial(&sum, &next, q.num_rows * q.group, q.dim_padded);
            if (chunk + 1 == last) finish(run, unit, &q, head, &sum);
        }
    }
}

static void fold_unit(const bd_run *run, const bd_unit *unit, int layer, int kv_head) {
    bd_queries q = queries_of(run, unit, layer, kv_head);
    int first, last, kv_heads = run->model->num_kv_heads;
    unit_range(run, unit, layer, &first, &last);
    bd_partial sum = partial_at(run, unit_result((bd_part){unit, first}, kv_heads) + kv_head);
    for (int chunk = first + 1; chunk < last; chunk++) {
        bd_part part = {unit, chunk};
        bd_partial next = partial_at(run, unit_result(part, kv_heads) + kv_head);
        run->kernels->fold_partial(&sum, &next, q.num_rows * q.group, q.dim_padded);
    }
    finish(run, unit, &q, kv_head, &sum);
}

/* The chunk at `index` of all that are seen in a layer, unit by unit; none at and beyond the end. */
static bd_part part_at(const bd_run *run, int layer, int index) {
    for (int u = 0; u < run->num_units; u++) {
        int first, last;
        unit_range(run, &run->units[u], layer, &first, &last);
        if (index < last - first) return (bd_part){&run->units[u], first + index};
        index -= last - first;
    }
    return (bd_part){NULL, 0};
}

/* One head of a chunk, its result left for fold_unit. `to`: where this thread's run of them ends. */
static void attend_item(bd_thread *t, int layer, int at, int to) {
    const bd_run *run = t->run;
    int kv_heads = run->model->num_kv_heads, after = at / kv_heads + 1;
    bd_part part = part_at(run, layer, at / kv_heads);
    bd_part next = after * kv_heads < to ? part_at(run, layer, after) : (bd_part){NULL, 0};
    int result = unit_result(part, kv_heads) + at % kv_heads;
    bd_partial out = partial_at(run, result);
    attend_part(t, part, next, layer, at % kv_heads, &out);
}

/* Chunks of few units, each head of each chunk by itself. Of many chunks every thread takes an equal
 * run, so that it knows what comes next; few are shared out one by one. */
static void attend_split(bd_thread *t, int layer) {
    const bd_run *run = t->run;
    int kv_heads = run->model->num_kv_heads, first, last, num_parts = 0;
    for (int u = 0; u < run->num_units; u++) {
        unit_range(run, &run->units[u], layer, &first, &last);
        num_parts += last - first;
    }
    int count = num_parts * kv_heads;
    if (num_parts >= RUN_PARTS_PER_THREAD * run->num_threads) {
        int from = count * t->thread / run->num_threads;
        int to = count * (t->thread + 1) / run->num_threads;
        for (int at = from; at < to; at++) attend_item(t, layer, at, to);
    } else {
        while (bd_take(t, count, 1, &first, &last)) attend_item(t, layer, first, last);
    }
    bd_end_phase(t);
    while (bd_take(t, run->num_units * kv_heads, 1, &first, &last))
        fold_unit(run, &run->units[first / kv_heads], layer, first % kv_heads);
    bd_end_phase(t);
}

/* Units a thread takes at a time: several, so that it knows what comes next. */
static int unit_grain(const bd_run *run) {
    int units = run->num_units / (run->num_threads * 2);
    if (units == 0) return 1;
    return units < MAX_UNIT_GRAIN ? units : MAX_UNIT_GRAIN;
}

void bd_attention_phase(bd_thread *t, int layer) {
    const bd_run *run = t->run;
    int first, last, grain = unit_grain(run);
    if (run->is_split) {
        attend_split(t, layer);
        return;
    }
    while (bd_take(t, run->num_units, grain, &first, &last))
        for (int at = first; at < last; at++) {
            const bd_unit *unit = &run->units[at], *next = at + 1 < last ? unit + 1 : NULL;
            /* Pieces of one sequence share their keys. */
            if (next && next->sequence == unit->sequence) next = NULL;
            attend_unit(t, unit, layer, next);
        }
    bd_end_phase(t);
}
