/* Attention of a whole batch: which thread attends what, and where its partial results lie. */
#include <string.h>

#include "run.h"

/* Few units and long contexts would leave threads idle; then the keys of a unit are shared too. */
#define SPLIT_UNITS_PER_THREAD 4
#define MAX_PARTIALS 4096
#define MAX_UNIT_GRAIN 32

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
                    num_units * kv_heads < SPLIT_UNITS_PER_THREAD * run->num_threads;
    run->num_partials = run->is_split ? num_partials : 2 * run->num_threads;
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

/* Have the rows of the unit after `unit` come while it is attended: with each head an equal share,
 * of all heads' rows as they follow each other in memory. */
static void look_ahead(const bd_run *run, const bd_unit *unit, int kv_head, bd_keys *keys) {
    const bd_unit *next = unit + 1;
    if (next->sequence == unit->sequence) return;
    int count = run->sequences[next->sequence].start, head_dim = run->model->head_dim;
    ptrdiff_t share = (ptrdiff_t)count * head_dim, to_first_head = (ptrdiff_t)kv_head * head_dim;
    keys->next = slot_at(run, next) - slot_at(run, unit) - to_first_head + kv_head * share;
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

/* All chunks of a unit one after the other, in this thread. */
static void attend_unit(bd_thread *t, const bd_unit *unit, int layer, int kv_head, int has_next) {
    const bd_run *run = t->run;
    bd_queries q = queries_of(run, unit, layer, kv_head);
    bd_keys keys = keys_of(run, unit, layer, kv_head);
    if (has_next) look_ahead(run, unit, kv_head, &keys);
    bd_partial sum = partial_at(run, 2 * t->thread), next = partial_at(run, 2 * t->thread + 1);
    void *scratch = run->scratch + t->thread * run->scratch_bytes;
    int first, last;
    chunk_range(&q, &keys, &first, &last);
    for (int chunk = first; chunk < last; chunk++) {
        const bd_partial *out = chunk == first ? &sum : &next;
        run->kernels->attend_chunk(&q, &keys, chunk * BD_KEY_CHUNK, scratch, out);
        if (chunk > first)
            run->kernels->fold_partial(&sum, &next, q.num_rows * q.group, q.dim_padded);
    }
    finish(run, unit, &q, kv_head, &sum);
}

/* One chunk of a unit, its result left where fold_unit finds it. */
static void attend_part(bd_thread *t, const bd_unit *unit, int layer, int kv_head, int chunk) {
    const bd_run *run = t->run;
    bd_queries q = queries_of(run, unit, layer, kv_head);
    bd_keys keys = keys_of(run, unit, layer, kv_head);
    int first, last;
    chunk_range(&q, &keys, &first, &last);
    if (chunk < first || chunk >= last) return;
    bd_partial out = partial_at(run, unit->first_partial + kv_head * unit->num_chunks + chunk);
    run->kernels->attend_chunk(&q, &keys, chunk * BD_KEY_CHUNK,
                               run->scratch + t->thread * run->scratch_bytes, &out);
}

static void fold_unit(const bd_run *run, const bd_unit *unit, int layer, int kv_head) {
    bd_queries q = queries_of(run, unit, layer, kv_head);
    bd_keys keys = keys_of(run, unit, layer, kv_head);
    int first, last, base = unit->first_partial + kv_head * unit->num_chunks;
    chunk_range(&q, &keys, &first, &last);
    bd_partial sum = partial_at(run, base + first);
    for (int chunk = first + 1; chunk < last; chunk++) {
        bd_partial next = partial_at(run, base + chunk);
        run->kernels->fold_partial(&sum, &next, q.num_rows * q.group, q.dim_padded);
    }
    finish(run, unit, &q, kv_head, &sum);
}

static void attend_split(bd_thread *t, int layer) {
    const bd_run *run = t->run;
    int kv_heads = run->model->num_kv_heads, first, last;
    while (bd_take(t, run->num_partials, 1, &first, &last)) {
        const bd_unit *unit = run->units;
        while (first >= unit->first_partial + unit->num_chunks * kv_heads) unit++;
        int at = first - unit->first_partial;
        attend_part(t, unit, layer, at / unit->num_chunks, at % unit->num_chunks);
    }
    bd_end_phase(t);
    while (bd_take(t, run->num_units * kv_heads, 1, &first, &last))
        fold_unit(run, &run->units[first / kv_heads], layer, first % kv_heads);
    bd_end_phase(t);
}

/* Heads of units a thread takes at a time. Where there are many, whole units: in the cache, rows of
 * different heads are neighbours. */
static int unit_grain(const bd_run *run) {
    int units = run->num_units / (run->num_threads * 2);
    if (units == 0) return 1;
    return (units < MAX_UNIT_GRAIN ? units : MAX_UNIT_GRAIN) * run->model->num_kv_heads;
}

void bd_attention_phase(bd_thread *t, int layer) {
    const bd_run *run = t->run;
    int kv_heads = run->model->num_kv_heads, first, last;
    if (run->is_split) {
        attend_split(t, layer);
        return;
    }
    int grain = unit_grain(run);
    while (bd_take(t, run->num_units * kv_heads, grain, &first, &last))
        for (int at = first; at < last; at++)
            attend_unit(t, &run->units[at / kv_heads], layer, at % kv_heads,
                        at + kv_heads < last);
    bd_end_phase(t);
}
