/* Runs every kernel on small odd shapes, in buffers of exactly the size the interface asks for.
 *
 * Built with sanitizers by test_native_sanitizers.py: any read or write outside a buffer, any
 * undefined operation and any data race ends the program. It also checks what is promised: a pass
 * of many rows gives the same bits as passes of one row, whatever the number of threads. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bd.h"

enum { LAYERS = 2, WIDTH = 72, HEADS = 6, KV_HEADS = 2, DIM = 24, FFN = 50, VOCAB = 77 };
enum { POSITIONS = 150, SLOTS = 2, MAX_LEN = 150, ROWS = 21, TAPS = 2, TOP = 5, GROUP = 8 };

static uint64_t state = 88172645463325252u;

static float uniform(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (float)(state >> 40) / (float)(1 << 24) - 0.5f;
}

static void *allocate(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (memory == NULL) abort();
    return memory;
}

static uint16_t to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static uint16_t *random_bf16(size_t count) {
    uint16_t *values = allocate(count, sizeof *values);
    for (size_t i = 0; i < count; i++) values[i] = to_bf16(uniform());
    return values;
}

static float *random_f32(size_t count, float offset) {
    float *values = allocate(count, sizeof *values);
    for (size_t i = 0; i < count; i++) values[i] = offset + 0.3f * uniform();
    return values;
}

static int round_up(int value) { return (value + BD_BLOCK - 1) / BD_BLOCK * BD_BLOCK; }

static bd_linear random_linear(int n, int k, int has_bias) {
    bd_linear linear = {
        .n = n, .k = k, .k_padded = round_up(k), .num_blocks = round_up(n) / BD_BLOCK};
    uint16_t *packed = allocate((size_t)round_up(n) * (size_t)linear.k_padded, sizeof *packed);
    for (int row = 0; row < n; row++)
        for (int i = 0; i < k; i++)
            packed[(size_t)(row / 32) * 32 * (size_t)linear.k_padded + (size_t)(i / 2) * 64 +
                   (size_t)(row % 32) * 2 + (size_t)(i % 2)] = to_bf16(uniform());
    linear.packed = packed;
    if (has_bias) linear.bias = random_f32((size_t)round_up(n), 0.0f);
    return linear;
}

/* The same layer with int8 weights. */
static bd_linear random_int8_linear(int n, int k) {
    bd_linear linear = random_linear(n, k, 1);
    size_t count = (size_t)round_up(n) * (size_t)linear.k_padded;
    uint8_t *quantised = allocate(count, sizeof *quantised);
    for (size_t i = 0; i < count; i++) quantised[i] = (uint8_t)(128.0f + 250.0f * uniform());
    free((void *)linear.packed);
    linear.packed = quantised;
    linear.kind = BD_WEIGHTS_INT8;
    linear.scales = random_f32((size_t)round_up(n), 0.1f);
    return linear;
}

/* The same layer with groups of integers; `k` a multiple of 32. */
static bd_linear random_group_linear(int n, int k, int bits) {
    bd_linear linear = random_linear(n, k, 0);
    size_t step = bits == 4 ? 640 : 1152, count = (size_t)(linear.num_blocks * (k / 32)) * step;
    uint8_t *packed = allocate(count, 1);
    for (size_t i = 0; i < count; i++) packed[i] = (uint8_t)(128.0f + 250.0f * uniform());
    for (size_t i = 0; i < count; i += step)
        for (size_t half = 0; half < 64; half++)
            packed[i + 2 * half + 1] &= 0xb7; /* halves of a size like one: no nan, no infinity */
    free((void *)linear.packed);
    linear.packed = packed;
    linear.kind = bits == 4 ? BD_WEIGHTS_GROUP4 : BD_WEIGHTS_GROUP8;
    return linear;
}

static void free_linear(const bd_linear *linear) {
    free((void *)linear->scales);
    free((void *)linear->packed);
    free((void *)linear->bias);
}

static bd_conv random_conv(int exists) {
    bd_conv conv = {0};
    if (!exists) return conv;
    conv.base = random_f32(4 * WIDTH, 0.5f);
    conv.projection = random_linear(4 * WIDTH / GROUP, WIDTH, 0);
    return conv;
}

static bd_model random_model(int isa, int is_drafter) {
    bd_layer *layers = allocate(LAYERS, sizeof *layers);
    for (int i = 0; i < LAYERS; i++) {
        layers[i] = (bd_layer){
            .attention_norm = random_f32(WIDTH, 1.0f),
            .mlp_norm = random_f32(WIDTH, 1.0f),
            .q_norm = random_f32(DIM, 1.0f),
            .k_norm = random_f32(DIM, 1.0f),
            .qkv = i == 1 ? random_linear((HEADS + 2 * KV_HEADS) * DIM, WIDTH, 0)
                          : random_int8_linear((HEADS + 2 * KV_HEADS) * DIM, WIDTH),
            .output = random_linear(WIDTH, HEADS * DIM, i == 1),
            .gate_up = random_linear(2 * round_up(FFN), WIDTH, 0),
            .down = random_linear(WIDTH, FFN, 0),
            .attention_conv = random_conv(is_drafter),
            .mlp_conv = random_conv(is_drafter),
            .window = i == 0 ? 30 : 0,
            .is_causal = !is_drafter,
        };
    }
    return (bd_model){
        .num_layers = LAYERS, .width = WIDTH, .num_heads = HEADS, .num_kv_heads = KV_HEADS,
        .head_dim = DIM, .ffn_width = FFN, .vocab_size = VOCAB, .conv_group = GROUP,
        .num_positions = POSITIONS, .keeps_rows = !is_drafter, .isa = isa, .norm_eps = 1e-5f,
        .softmax_scale = 0.2f, .embedding_scale = 1.0f, .layers = layers,
        .embedding = is_drafter ? random_bf16(VOCAB * WIDTH) : NULL,
        .final_norm = random_f32(WIDTH, 1.0f),
        .cosine = random_f32(POSITIONS * DIM / 2, 0.5f),
        .sine = random_f32(POSITIONS * DIM / 2, 0.5f), .head = random_linear(VOCAB, WIDTH, 0),
        .feature = is_drafter ? random_linear(WIDTH, TAPS * WIDTH + 4, 0) : (bd_linear){0},
        .feature_norm = is_drafter ? random_f32(WIDTH, 1.0f) : NULL,
    };
}

static void free_model(bd_model *model) {
    for (int i = 0; i < LAYERS; i++) {
        const bd_layer *l = &model->layers[i];
        const bd_linear *linears[] = {&l->qkv, &l->output, &l->gate_up, &l->down,
                                      &l->attention_conv.projection, &l->mlp_conv.projection};
        const float *floats[] = {l->attention_norm, l->mlp_norm, l->q_norm, l->k_norm,
                                 l->attention_conv.base, l->mlp_conv.base};
        for (int j = 0; j < 6; j++) free_linear(linears[j]);
        for (int j = 0; j < 6; j++) free((void *)floats[j]);
    }
    const void *rest[] = {model->layers, model->embedding, model->final_norm, model->cosine,
                          model->sine, model->feature_norm};
    for (int j = 0; j < 6; j++) free((void *)rest[j]);
    free_linear(&model->head);
    free_linear(&model->feature);
}

static bd_cache new_cache(void) {
    size_t size = (size_t)LAYERS * SLOTS * MAX_LEN * KV_HEADS * DIM;
    return (bd_cache){allocate(size, 2), allocate(size, 2), SLOTS, MAX_LEN};
}

static void free_cache(bd_cache *cache) {
    free(cache->keys);
    free(cache->values);
}

static void expect(int status, const char *what) {
    if (status == 0) return;
    fprintf(stderr, "%s: failed (%d)\n", what, status);
    exit(1);
}

/* Logits of rows [0, ROWS) of slot 1 from position `start` on, `step` rows a pass. */
static void run_rows(const bd_model *model, bd_cache *cache, int start, int step, float *logits) {
    for (int row = 0; row < ROWS; row += step) {
        int count = ROWS - row < step ? ROWS - row : step;
        int64_t *ids = allocate((size_t)count, sizeof *ids);
        int32_t *rows = allocate((size_t)count, sizeof *rows);
        uint16_t *features = allocate((size_t)count * TAPS * WIDTH, sizeof *features);
        int32_t taps[TAPS] = {1, 0};
        for (int i = 0; i < count; i++) ids[i] = (row + i) * 7 % VOCAB, rows[i] = i;
        bd_sequence sequence = {1, start + row, count, 0};
        bd_batch batch = {
            .cache = *cache, .ids = ids, .sequences = &sequence, .tap_layers = taps,
            .features = features, .head_rows = rows, .logits = logits + row * VOCAB,
            .num_sequences = 1, .num_rows = count, .num_taps = TAPS, .num_head_rows = count,
            .head_kind = BD_HEAD_F32,
        };
        expect(bd_run_pass(model, &batch), "pass");
        free(ids);
        free(rows);
        free(features);
    }
}

static void check_same_bits(int isa) {
    bd_model model = random_model(isa, 0);
    float *first = allocate(ROWS * VOCAB, sizeof *first);
    float *other = allocate(ROWS * VOCAB, sizeof *other);
    for (int start = 0; start <= 129; start += 43) {
        bd_cache cache = new_cache();
        bd_set_num_threads(1);
        run_rows(&model, &cache, start, 1, first);
        for (int threads = 1; threads <= 4; threads++) {
            for (int step = 1; step <= ROWS; step += 5) {
                bd_set_num_threads(threads);
                run_rows(&model, &cache, start, step, other);
                expect(memcmp(first, other, ROWS * VOCAB * sizeof *first), "same bits");
            }
        }
        free_cache(&cache);
    }
    free(first);
    free(other);
    free_model(&model);
}

/* Two blocks of unlike lengths on unlike contexts, the greatest logits of some rows. */
static void check_drafter(int isa) {
    enum { CONTEXT_A = 131, CONTEXT_B = 3, BLOCK_A = 8, BLOCK_B = 5, ASKED = 4 };
    bd_model model = random_model(isa, 1);
    bd_cache cache = new_cache();
    bd_sequence context[2] = {{0, 0, CONTEXT_A, 0}, {1, 0, CONTEXT_B, CONTEXT_A}};
    bd_sequence blocks[2] = {{0, CONTEXT_A, BLOCK_A, 0}, {1, CONTEXT_B, BLOCK_B, BLOCK_A}};
    uint16_t *features = random_bf16((size_t)(CONTEXT_A + CONTEXT_B) * (TAPS * WIDTH + 4));
    int64_t ids[BLOCK_A + BLOCK_B], top_ids[ASKED * TOP];
    int32_t rows[ASKED] = {0, 7, 8, 12};
    float top_values[ASKED * TOP];
    uint8_t nonfinite[ASKED];
    uint16_t *hidden = allocate(ASKED * WIDTH, sizeof *hidden);
    for (int i = 0; i < BLOCK_A + BLOCK_B; i++) ids[i] = i;
    bd_batch batch = {
        .cache = cache, .ids = ids, .sequences = blocks, .head_rows = rows,
        .top_values = top_values, .top_ids = top_ids, .nonfinite = nonfinite, .hidden = hidden,
        .num_sequences = 2, .num_rows = BLOCK_A + BLOCK_B, .num_head_rows = ASKED,
        .head_kind = BD_HEAD_TOP, .top_k = TOP,
    };
    for (int threads = 1; threads <= 3; threads++) {
        bd_set_num_threads(threads);
        expect(bd_append_context(&model, &cache, features, context, 2, CONTEXT_A + CONTEXT_B),
               "context");
        expect(bd_run_pass(&model, &batch), "draft");
        for (int i = 0; i < ASKED * TOP; i++)
            expect(top_ids[i] < 0 || top_ids[i] >= VOCAB, "candidate");
    }
    free(features);
    free(hidden);
    free_cache(&cache);
    free_model(&model);
}

static void check_linear(int isa) {
    static const int shapes[][3] = {{1, 1, 1}, {33, 700, 40}, {64, 96, 300}, {50, 130, 9}};
    for (int i = 0; i < 16; i++) {
        int n = shapes[i / 4][0], k = shapes[i / 4][1], rows = shapes[i / 4][2];
        if (i % 4 > 1) k = round_up(k);
        bd_linear linear = i % 4 == 0   ? random_linear(n, k, i % 8 == 0)
                           : i % 4 == 1 ? random_int8_linear(n, k)
                                        : random_group_linear(n, k, i % 4 == 2 ? 4 : 8);
        uint16_t *x = random_bf16((size_t)rows * (size_t)k);
        void *y = allocate((size_t)rows * (size_t)n, sizeof(float));
        expect(bd_run_linear(isa, &linear, x, rows, y, BD_OUT_F32), "linear");
        expect(bd_run_linear(isa, &linear, x, rows, y, BD_OUT_BF16), "linear");
        expect(bd_run_linear(isa, &linear, x, 0, NULL, BD_OUT_F32), "no rows");
        free(x);
        free(y);
        free_linear(&linear);
    }
}

/* Three sequences of 0 to 2 drafts: the same verdicts for any number of threads, whatever stands
 * behind a length; the ends of the uniforms; what is refused. */
static void check_sampled(int isa) {
    enum { B = 3, K = 2, C = 3 };
    static const int sizes[] = {1, 15, 17, 64, 65, 1000, 70001};
    for (int s = 0; s < 7; s++) {
        int v = sizes[s];
        float *logits = random_f32((size_t)(v * B * (K + 1)), 0.0f);
        int32_t lens[B] = {0, 2, 1};
        int64_t rows[B] = {0, K + 1, 2 * (K + 1)}, drafts[B * K], ids[B * K * C];
        int64_t accepted[B], next_ids[B], first[2 * B];
        double temperatures[B] = {1.0, 1e-5, 3.0}, coins[B * K], masses[B];
        double uniforms[B] = {0.0, 0.5, 1.0 - 0x1p-53};
        float q[B * K * C];
        for (int i = 0; i < B * K; i++) drafts[i] = i % v, coins[i] = 0.9;
        for (int i = 0; i < B * K * C; i++) ids[i] = (i / C + i % C) % v, q[i] = 0.3f;
        drafts[0] = v, ids[0] = -1, coins[0] = 0.0 / 0.0; /* behind a length */
        bd_sampled sampled = {lens, drafts, ids, q, coins, uniforms, uniforms, accepted, next_ids,
                              K, C};
        for (int threads = 1; threads <= 3; threads++) {
            bd_set_num_threads(threads);
            expect(bd_accept_sampled(isa, logits, v, rows, temperatures, B, &sampled), "accept");
            if (threads == 1) memcpy(first, next_ids, sizeof next_ids);
            if (threads == 1) memcpy(first + B, accepted, sizeof accepted);
            expect(memcmp(first, next_ids, sizeof next_ids), "same tokens");
            expect(memcmp(first + B, accepted, sizeof accepted), "same lengths");
        }
        for (int i = 0; i < B; i++) expect(next_ids[i] < 0 || next_ids[i] >= v, "drawn id");
        sampled.q_ids = NULL;
        expect(bd_accept_sampled(isa, logits, v, rows, temperatures, B, &sampled), "point masses");
        expect(bd_token_masses(isa, logits, v, rows, temperatures, B, next_ids, masses), "masses");
        lens[0] = 1;
        expect(bd_accept_sampled(isa, logits, v, rows, temperatures, B, &sampled) !=
                   BD_ERROR_ARGUMENT, "an id out of range");
        logits[v - 1] = 1.0f / 0.0f;
        lens[0] = 0;
        expect(bd_accept_sampled(isa, logits, v, rows, temperatures, 1, &sampled) !=
                   BD_ERROR_NO_MASS, "no mass");
        free(logits);
    }
}

/* A drawn walk in which a score is not finite, uniforms, and rows without a token. */
static void check_walk(int isa) {
    enum { B = 2, K = 3, C = 4, RANK = 19, ENTRIES = 6 };
    float *gate = random_f32(B * K * RANK, 0.0f), *values = random_f32(B * K * C, 0.0f);
    uint16_t *left = random_bf16(ENTRIES * RANK), *right = random_bf16(ENTRIES * RANK);
    int64_t rows[B * K * C], anchors[B] = {0, 5}, path[B * K], positions[B * K];
    int32_t finite_lens[B];
    uint64_t seeds[B] = {1, ~0ull};
    uint32_t purpose = 2;
    double temperatures[B] = {0.7, 0.0}, uniforms[B * K];
    float q[B * K * C];
    uint8_t is_bad[B * K];
    for (int i = 0; i < B * K * C; i++) rows[i] = i % ENTRIES;
    for (int i = 0; i < B * K; i++) positions[i] = i;
    bd_uniforms(seeds, seeds, positions, B, K, &purpose, 1, uniforms);
    bd_walk walk = {gate, values, rows, anchors, left, right, NULL, temperatures, uniforms, path,
                    finite_lens, NULL, B, K, C, RANK};
    expect(bd_run_walk(isa, &walk), "greedy walk");
    walk.q = q, walk.token_ids = rows, values[K * C + C] = 1.0f / 0.0f;
    expect(bd_run_walk(isa, &walk), "drawn walk");
    expect(finite_lens[0] != K || finite_lens[1] != 1, "finite scores");
    expect(bd_nonfinite_rows(isa, values, C, B * K, is_bad), "rows");
    free(gate), free(values), free(left), free(right);
}

int main(void) {
    for (int isa = 0; isa < BD_NUM_ISAS; isa++) {
        if (!bd_isa_usable(isa)) continue;
        check_linear(isa);
        check_same_bits(isa);
        check_drafter(isa);
        check_sampled(isa);
        check_walk(isa);
        printf("instruction set %d: ok\n", isa);
    }
    bd_set_num_threads(1);
    return 0;
}
