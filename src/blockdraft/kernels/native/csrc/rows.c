/* Phases over rows: into the residual stream, and from a q/k/v product to heads and cache. */
#include <string.h>

#include "run.h"

/* Heads of rows that a thread stores before it takes more. */
#define MAX_GRAIN 8
#define LINE 32 /* values in a cache line */

/* Row `id` of a matrix that was packed as a linear layer, from its pairs of inputs. */
static void unpack_row(const bd_linear *linear, int64_t id, uint16_t *out) {
    const uint16_t *block =
        (const uint16_t *)linear->packed + id / BD_BLOCK * BD_BLOCK * linear->k_padded;
    ptrdiff_t lane = 2 * (id % BD_BLOCK);
    for (int k = 0; k < linear->k_padded; k += 2)
        memcpy(out + k, block + (ptrdiff_t)k * BD_BLOCK + lane, 2 * sizeof *out);
}

static void unpack_int8_row(const bd_linear *linear, int64_t id, float scale, float *out) {
    const uint8_t *block =
        (const uint8_t *)linear->packed + id / BD_BLOCK * BD_BLOCK * linear->k_padded;
    ptrdiff_t half = id % BD_BLOCK / BD_LANES, lane = id % BD_LANES;
    const uint8_t *pairs = block + lane / 4 * 16 + half * 8 + lane % 4 * 2;
    for (int k = 0; k < linear->k_padded; k++) {
        uint8_t byte = pairs[(ptrdiff_t)(k / 2) * 2 * BD_BLOCK + k % 2];
        float magnitude = (float)(byte & 0x7f) * linear->scales[id] * scale;
        out[k] = byte & 0x80 ? -magnitude : magnitude;
    }
}

void bd_embed_phase(bd_thread *t) {
    bd_run *run = t->run;
    const bd_model *model = run->model;
    uint16_t unpacked[run->width_padded];
    int first, last;
    while (bd_take(t, run->num_rows, 1, &first, &last)) {
        int64_t id = run->batch->ids[run->first_row + first];
        float *x = run->x + first * (ptrdiff_t)run->width_padded;
        const uint16_t *row = unpacked;
        if (model->embedding == NULL && model->head.kind == BD_WEIGHTS_INT8) {
            unpack_int8_row(&model->head, id, model->embedding_scale, x);
            continue;
        }
        if (model->embedding == NULL) unpack_row(&model->head, id, unpacked);
        else row = model->embedding + id * model->width;
        run->kernels->widen(row, model->width, run->width_padded, model->embedding_scale, x);
    }
    bd_end_phase(t);
}

typedef struct {
    int layer, row, kv_head, position;
    const bd_sequence *sequence;
    const float *cosine, *sine;
} bd_place;

static bd_place place_of(const bd_run *run, int layer, int row, int kv_head) {
    const bd_sequence *sequence = run->sequences;
    while (row >= sequence->first_row + sequence->num_rows) sequence++;
    int position = sequence->start + row - sequence->first_row;
    ptrdiff_t angle = (ptrdiff_t)position * (run->model->head_dim / 2);
    return (bd_place){layer,    row, kv_head, position, sequence, run->model->cosine + angle,
                      run->model->sine + angle};
}

static void store_queries(const bd_run *run, const bd_place *place) {
    const bd_model *model = run->model;
    int dim = model->head_dim;
    ptrdiff_t to = (ptrdiff_t)place->kv_head * run->num_rows + place->row;
    for (int g = 0; g < run->group; g++) {
        float *x = run->qkv + (ptrdiff_t)place->row * run->qkv_padded +
                   (place->kv_head * run->group + g) * dim;
        if (model->layers[place->layer].q_norm)
            run->kernels->norm_head(x, model->layers[place->layer].q_norm, dim, model->norm_eps);
        run->kernels->rotate(x, place->cosine, place->sine, dim, run->dim_padded,
                             run->q + (to * run->group + g) * run->dim_padded);
    }
}

typedef struct {
    uint16_t *key, *value;
} bd_kept;

static bd_kept kept_at(const bd_run *run, const bd_place *place, int keeps_rows) {
    int dim = run->model->head_dim, kv_heads = run->model->num_kv_heads;
    ptrdiff_t slot = (ptrdiff_t)place->layer * run->cache.num_slots + place->sequence->slot;
    ptrdiff_t row = keeps_rows ? slot * run->cache.max_len + place->position : place->row;
    ptrdiff_t at = (row * kv_heads + place->kv_head) * dim;
    return keeps_rows ? (bd_kept){run->cache.keys + at, run->cache.values + at}
                      : (bd_kept){run->keys + at, run->values + at};
}

static void store_key_and_value(const bd_run *run, const bd_place *place, int keeps_rows) {
    const bd_model *model = run->model;
    int dim = model->head_dim, kv_heads = model->num_kv_heads;
    float *x = run->qkv + (ptrdiff_t)place->row * run->qkv_padded +
               (model->num_heads + place->kv_head) * dim;
    bd_kept kept = kept_at(run, place, keeps_rows);
    if (model->layers[place->layer].k_norm)
        run->kernels->norm_head(x, model->layers[place->layer].k_norm, dim, model->norm_eps);
    run->kernels->rotate(x, place->cosine, place->sine, dim, dim, kept.key);
    run->kernels->narrow(x + kv_heads * dim, dim, dim, kept.value);
}

/* Rows of a cache were never near: all that a thread is to write is asked for before the first. */
static void ask_for(const bd_kept *kept, int head_dim) {
    for (int i = 0; i < head_dim; i += LINE) {
        __builtin_prefetch(kept->key + i, 1);
        __builtin_prefetch(kept->value + i, 1);
    }
}

static int grain_of_rows(const bd_run *run, int count) {
    int grain = count / (run->num_threads * 4);
    return grain < 1 ? 1 : grain < MAX_GRAIN ? grain : MAX_GRAIN;
}

void bd_store_rows(bd_thread *t, int layer, int is_context) {
    const bd_run *run = t->run;
    const bd_model *model = run->model;
    int kv_heads = model->num_kv_heads, used = model->num_heads * model->head_dim;
    int keeps_rows = is_context || model->keeps_rows, count = run->num_rows * kv_heads;
    int first, last;
    while (bd_take(t, count, grain_of_rows(run, count), &first, &last)) {
        bd_place places[MAX_GRAIN];
        for (int i = first; i < last; i++) {
            bd_place *place = &places[i - first];
            *place = place_of(run, layer, i / kv_heads, i % kv_heads);
            bd_kept kept = kept_at(run, place, keeps_rows);
            ask_for(&kept, model->head_dim);
        }
        for (int i = first; i < last; i++) {
            const bd_place *place = &places[i - first];
            store_key_and_value(run, place, keeps_rows);
            if (is_context) continue;
            store_queries(run, place);
            if (place->kv_head == 0)
                for (int j = used; j < run->heads_padded; j++)
                    run->heads[(ptrdiff_t)place->row * run->heads_padded + j] = 0;
        }
    }
    bd_end_phase(t);
}
