/* All kernels of one instruction set. Compiled once for each, with BD_TARGET one of
 * portable, avx2, avx512, amx; only the tile product differs in its source. */
#define BD_NAME_(prefix, target) prefix##target
#define BD_NAME(prefix, target) BD_NAME_(prefix, target)

#include "kernels.h"

#include "attention.h"
#include "head.h"
#include "product.h"
#include "rowops.h"
#include "softmax.h"

static void begin(void) { bd_thread_begin(); }
static void end(void) { bd_thread_end(); }

const bd_kernels BD_NAME(bd_kernels_, BD_TARGET) = {
    .tile_rows = BD_TILE_ROWS,
    .thread_begin = begin,
    .thread_end = end,
    .multiply = bd_multiply,
    .attention_scratch = bd_attention_scratch,
    .attend_chunk = bd_attend_chunk,
    .fold_partial = bd_fold_partial,
    .finish_attention = bd_finish_attention,
    .norm_row = bd_norm_row,
    .norm_head = bd_norm_head,
    .rotate = bd_rotate,
    .narrow = bd_narrow_row,
    .widen = bd_widen_row,
    .select_top = bd_select_top,
    .convolve = bd_convolve,
    .row_maximum = bd_row_maximum,
    .weigh = bd_weigh,
    .sum_weights = bd_sum_weights,
};
