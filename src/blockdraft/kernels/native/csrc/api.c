/* Which instruction sets can run, and a linear layer alone. */
#include <stdlib.h>
#include <string.h>

#include "run.h"

#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

extern const bd_kernels bd_kernels_portable;
#ifdef BD_HAS_AVX2
extern const bd_kernels bd_kernels_avx2;
#endif
#ifdef BD_HAS_AVX512
extern const bd_kernels bd_kernels_avx512;
#endif
#ifdef BD_HAS_AMX
extern const bd_kernels bd_kernels_amx;
#endif

int bd_abi_version(void) { return BD_ABI_VERSION; }

int bd_struct_bytes(int index) {
    static const size_t sizes[] = {sizeof(bd_linear),   sizeof(bd_conv),  sizeof(bd_layer),
                                   sizeof(bd_model),    sizeof(bd_sequence),
                                   sizeof(bd_cache),    sizeof(bd_batch), sizeof(bd_sampled),
                                   sizeof(bd_walk)};
    int count = (int)(sizeof sizes / sizeof *sizes);
    return index >= 0 && index < count ? (int)sizes[index] : 0;
}

#if defined(BD_HAS_AVX512)
static int has_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bf16");
}
#endif

#if defined(BD_HAS_AMX) && defined(__linux__)
#define ARCH_REQUEST_PERMISSION 0x1023
#define TILE_DATA 18

/* CPUID leaf 7: AMX-BF16 and AMX-TILE; then the kernel must grant the tile registers. */
static int has_amx(void) {
    unsigned a = 7, b, c = 0, d;
    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    if (!((d >> 22) & 1) || !((d >> 24) & 1)) return 0;
    return syscall(SYS_arch_prctl, ARCH_REQUEST_PERMISSION, TILE_DATA) == 0;
}
#endif

int bd_isa_usable(int isa) {
    if (isa == BD_ISA_PORTABLE) return 1;
#ifdef BD_HAS_AVX2
    if (isa == BD_ISA_AVX2)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
#ifdef BD_HAS_AVX512
    if (isa == BD_ISA_AVX512) return has_avx512();
#endif
#if defined(BD_HAS_AMX) && defined(__linux__)
    if (isa == BD_ISA_AMX) return has_avx512() && has_amx();
#endif
    return 0;
}

const bd_kernels *bd_find_kernels(int isa) {
    if (isa == BD_ISA_PORTABLE) return &bd_kernels_portable;
#ifdef BD_HAS_AVX2
    if (isa == BD_ISA_AVX2) return &bd_kernels_avx2;
#endif
#ifdef BD_HAS_AVX512
    if (isa == BD_ISA_AVX512) return &bd_kernels_avx512;
#endif
#ifdef BD_HAS_AMX
    if (isa == BD_ISA_AMX) return &bd_kernels_amx;
#endif
    return NULL;
}

static void linear_task(void *argument, int thread, int num_threads) {
    bd_run *run = argument;
    bd_thread t = {run, thread, 0};
    (void)num_threads;
    run->kernels->thread_begin();
    bd_multiply_phase(&t, run->linear_product);
    run->kernels->thread_end();
}

/* Rows widened to k_padded, or NULL when there is no memory. */
static uint16_t *pad_rows(const bd_linear *linear, const uint16_t *x, int num_rows) {
    size_t width = (size_t)linear->k_padded, used = (size_t)linear->k;
    uint16_t *padded = calloc((size_t)num_rows * width, sizeof *padded);
    for (size_t row = 0; padded != NULL && row < (size_t)num_rows; row++)
        memcpy(padded + row * width, x + row * used, used * sizeof *padded);
    return padded;
}

/* Multiply on all threads of the pool, each with room for one expanded block. */
static int multiply(const bd_kernels *kernels, const bd_product *product) {
    bd_counter counter = {0};
    int is_bf16 = product->linear->kind == BD_WEIGHTS_BF16;
    size_t block = is_bf16 ? 0 : (size_t)product->linear->k_padded * BD_BLOCK;
    size_t threads = (size_t)bd_pool_num_threads();
    bd_run run = {.kernels = kernels, .counters = &counter, .linear_product = product,
                  .num_threads = (int)threads, .expanded_stride = block};
    run.expanded = malloc(threads * block * sizeof *run.expanded + 1);
    if (run.expanded == NULL) return BD_ERROR_MEMORY;
    bd_pool_run(linear_task, &run);
    free(run.expanded);
    return BD_OK;
}

int bd_run_linear(int isa, const bd_linear *linear, const uint16_t *x, int num_rows, void *y,
                  int out_kind) {
    const bd_kernels *kernels = bd_find_kernels(isa);
    if (kernels == NULL) return BD_ERROR_ARGUMENT;
    if (num_rows == 0) return BD_OK;
    uint16_t *padded = linear->k == linear->k_padded ? NULL : pad_rows(linear, x, num_rows);
    if (linear->k != linear->k_padded && padded == NULL) return BD_ERROR_MEMORY;
    bd_product product = {linear, padded ? padded : x, linear->k_padded, num_rows,
                          out_kind == BD_OUT_F32 ? BD_TO_F32 : BD_TO_BF16, y, linear->n, linear->n,
                          NULL};
    bd_pool_lock();
    int status = multiply(kernels, &product);
    bd_pool_unlock();
    free(padded);
    return status;
}
