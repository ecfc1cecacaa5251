/* The public interface of the native kernels: plain structs, mirrored by ctypes in structs.py.
 *
 * Every bfloat16 number is a uint16_t. Rows are tokens. A row's result never depends on how many
 * rows, neighbours, batches or threads it is computed with: each sum has one fixed order.
 */
#ifndef BD_H
#define BD_H

#include <stddef.h>
#include <stdint.h>

#define BD_ABI_VERSION 4
#define BD_BLOCK 32       /* outputs of one packed block */
#define BD_LANES 16       /* outputs of one 64-byte load (two consecutive inputs each) */
#define BD_MAX_TOP 64     /* most candidates the head can select */
#define BD_MAX_HEAD_DIM 256

#define BD_EXPORT __attribute__((visibility("default")))

enum { BD_ISA_PORTABLE = 0, BD_ISA_AVX2 = 1, BD_ISA_AVX512 = 2, BD_ISA_AMX = 3, BD_NUM_ISAS = 4 };
enum { BD_OK = 0, BD_ERROR_MEMORY = -1, BD_ERROR_ARGUMENT = -2, BD_ERROR_NO_MASS = -3,
       BD_ERROR_IMPOSSIBLE_DRAFT = -4 };
enum { BD_HEAD_NONE = 0, BD_HEAD_F32 = 1, BD_HEAD_BF16 = 2, BD_HEAD_TOP = 3 };
enum { BD_OUT_F32 = 0, BD_OUT_BF16 = 1 };
enum { BD_WEIGHTS_BF16 = 0, BD_WEIGHTS_INT8 = 1, BD_WEIGHTS_GROUP4 = 2, BD_WEIGHTS_GROUP8 = 3 };

/* y = W x + bias, zeros where padded.
 *
 * bfloat16 weights are packed as [num_blocks][k_padded / 2][2][16 outputs][2 inputs]. Others are
 * expanded to bfloat16 block by block when they are used:
 *   int8    W = scales * integer; the integer is exact in bfloat16, and the sum is scaled
 *   group4, bfloat16(scale * integer + offset), both of 32 consecutive inputs of one output: what a
 *   group8  GGUF file holds, and the very weights that dequantising it would give
 * Their order in memory: expand.h, expand_groups.h. */
typedef struct {
    const void *packed;
    const float *scales; /* of int8 weights: [num_blocks * 32] */
    const float *bias;   /* [num_blocks * 32] or NULL */
    int32_t kind, n, k, k_padded, num_blocks;
} bd_linear;

/* Two-tap dynamic convolution around a sub-layer; base is [2 sides][2 taps][width] or NULL. */
typedef struct {
    const float *base;
    bd_linear projection; /* width -> 2 sides * 2 taps * groups */
} bd_conv;

typedef struct {
    const float *attention_norm, *mlp_norm; /* [width] */
    const float *q_norm, *k_norm;           /* [head_dim] or NULL */
    bd_linear qkv, output, gate_up, down;   /* gate_up: 16 gate rows, 16 up rows, alternating */
    bd_conv attention_conv, mlp_conv;
    int32_t window;    /* a key is visible iff |q_pos - k_pos| < window; 0: no limit */
    int32_t is_causal; /* else all rows of the same call and sequence see each other */
} bd_layer;

typedef struct {
    int32_t num_layers, width, num_heads, num_kv_heads, head_dim, ffn_width, vocab_size;
    int32_t conv_group;    /* channels that share one convolution coefficient */
    int32_t num_positions; /* rows of the rotary tables */
    int32_t keeps_rows;    /* new keys and values go to the cache (targets), else to scratch */
    int32_t isa;
    float norm_eps, softmax_scale, embedding_scale;
    const bd_layer *layers;
    const uint16_t *embedding;  /* [vocab][width]; NULL: read out of the packed head */
    const float *final_norm;    /* [width] */
    const float *cosine, *sine; /* [num_positions][head_dim / 2], half-split rotary */
    bd_linear head;
    bd_linear feature;         /* drafters: num_taps * width -> width */
    const float *feature_norm; /* drafters: [width] */
} bd_model;

/* `num_rows` rows from `first_row` on belong to cache slot `slot`, positions from `start` on. */
typedef struct {
    int32_t slot, start, num_rows, first_row;
} bd_sequence;

/* Keys and values, each [layers][num_slots][max_len][kv_heads][head_dim]. */
typedef struct {
    uint16_t *keys, *values;
    int32_t num_slots, max_len;
} bd_cache;

typedef struct {
    bd_cache cache;
    const int64_t *ids; /* [num_rows] */
    const bd_sequence *sequences;
    const int32_t *tap_layers; /* outputs of these layers are written to `features` */
    uint16_t *features;        /* [num_rows][num_taps * width] */
    const int32_t *head_rows;  /* ascending */
    void *logits;              /* BD_HEAD_F32, BD_HEAD_BF16: [num_head_rows][vocab] */
    float *top_values;         /* BD_HEAD_TOP: [num_head_rows][top_k], greatest first, */
    int64_t *top_ids;          /*              the lowest id first among equals */
    uint8_t *nonfinite;        /* BD_HEAD_TOP: [num_head_rows] 1 if any logit is inf or nan */
    uint16_t *hidden;          /* [num_head_rows][width] after the final norm, or NULL */
    int32_t num_sequences, num_rows, num_taps, num_head_rows, head_kind, top_k;
} bd_batch;

/* A walk through [num_rows][num_slots] slots of `num_candidates` each, from anchors[row] on.
 * Candidates and anchors are rows of the codebooks; the path holds their token_ids, or the rows
 * themselves if that is NULL. finite_lens[row] counts the slots before the first with a score on
 * the way that is not a finite number.
 *
 * Without `q` the best candidate is taken, the first one on ties. With it, q receives the law of
 * each slot on its candidates, which the path was drawn from: softmax(score / temperature), or one
 * on the best where the temperature is 0 or a score so far was not finite. */
typedef struct {
    const float *gate, *values;    /* [rows][slots][rank], [rows][slots][candidates] */
    const int64_t *candidate_rows; /* [rows][slots][candidates] */
    const int64_t *anchors;        /* [rows] */
    const uint16_t *predecessors, *successors;
    const int64_t *token_ids;
    const double *temperatures, *uniforms; /* with q: [rows], [rows][slots] */
    int64_t *path;                         /* [rows][slots] */
    int32_t *finite_lens;                  /* [rows] */
    float *q;                              /* [rows][slots][candidates] or NULL */
    int32_t num_rows, num_slots, num_candidates, rank;
} bd_walk;

/* What was drafted for each sequence, and the uniforms that judge it. Slots at and beyond a length
 * may hold anything. */
typedef struct {
    const int32_t *lens;      /* 0..num_slots */
    const int64_t *draft_ids; /* [num_slots] a sequence */
    const int64_t *q_ids;     /* [num_slots][num_support], ids may repeat; NULL: point masses */
    const float *q_masses;
    const double *coins;      /* [num_slots] */
    const double *residuals, *bonuses;
    int64_t *accepted, *next_ids; /* results */
    int32_t num_slots, num_support;
} bd_sampled;

BD_EXPORT int bd_abi_version(void);
/* Size of the struct at `index` in the order of structs.py, or 0. */
BD_EXPORT int bd_struct_bytes(int index);
/* Whether this build and this processor can run an instruction set. */
BD_EXPORT int bd_isa_usable(int isa);
BD_EXPORT void bd_set_num_threads(int num_threads);
BD_EXPORT int64_t bd_workspace_bytes(void);
/* x: [num_rows][k] bfloat16; y: [num_rows][n], float32 or bfloat16. */
BD_EXPORT int bd_run_linear(int isa, const bd_linear *linear, const uint16_t *x, int num_rows,
                            void *y, int out_kind);
/* One pass over all rows of a batch. */
BD_EXPORT int bd_run_pass(const bd_model *model, const bd_batch *batch);
/* Store the keys and values of feature rows [num_rows][num_taps * width] in a draft context. */
BD_EXPORT int bd_append_context(const bd_model *model, const bd_cache *cache,
                                const uint16_t *features, const bd_sequence *sequences,
                                int num_sequences, int num_rows);
BD_EXPORT int bd_run_walk(int isa, const bd_walk *walk);
/* Uniforms in [0, 1) [num_purposes][num_rows][num_positions], positions below 2^32. */
BD_EXPORT void bd_uniforms(const uint64_t *seeds, const uint64_t *stream_keys,
                           const int64_t *positions, int num_rows, int num_positions,
                           const uint32_t *purposes, int num_purposes, double *out);
/* is_bad[row] of logits [num_rows][vocab_size]: nan or inf among them, or -inf alone. */
BD_EXPORT int bd_nonfinite_rows(int isa, const float *logits, int vocab_size, int num_rows,
                                uint8_t *is_bad);
/* Probabilities at temperatures above 0, out of logits [.][vocab_size]: masses[i] is that of ids[i]
 * in row rows[i]. BD_ERROR_NO_MASS if a row has nan or inf, or -inf alone. */
BD_EXPORT int bd_token_masses(int isa, const float *logits, int vocab_size, const int64_t *rows,
                              const double *temperatures, int count, const int64_t *ids,
                              double *masses);
/* Rejection sampling of `count` sequences. Row rows[i] + j of the logits follows j drafts of
 * sequence i. BD_ERROR_IMPOSSIBLE_DRAFT if a draft has q = 0. */
BD_EXPORT int bd_accept_sampled(int isa, const float *logits, int vocab_size, const int64_t *rows,
                                const double *temperatures, int count, const bd_sampled *sampled);

#endif
