/* Uniforms of the random streams: Philox4x32-10 (Salmon et al. 2011), the same bits as
 * sampling/streams.py, which says what they are. */
#include "bd.h"

enum { ROUNDS = 10 };

/* The first 64 random bits of a counter: its words 0 and 1, and words 2 and 3 as one. */
static uint64_t philox(uint32_t first, uint32_t second, uint64_t rest, uint64_t key) {
    uint32_t even[2] = {first, (uint32_t)rest}, odd[2] = {second, (uint32_t)(rest >> 32)};
    uint32_t keys[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t a = (uint64_t)even[0] * 0xD2511F53u, b = (uint64_t)even[1] * 0xCD9E8D57u;
        even[0] = (uint32_t)(b >> 32) ^ odd[0] ^ keys[0];
        even[1] = (uint32_t)(a >> 32) ^ odd[1] ^ keys[1];
        odd[0] = (uint32_t)b, odd[1] = (uint32_t)a;
        keys[0] += 0x9E3779B9u, keys[1] += 0xBB67AE85u;
    }
    return (uint64_t)even[0] << 32 | odd[0];
}

void bd_uniforms(const uint64_t *seeds, const uint64_t *stream_keys, const int64_t *positions,
                 int num_rows, int num_positions, const uint32_t *purposes, int num_purposes,
                 double *out) {
    for (int p = 0; p < num_purposes; p++)
        for (int row = 0; row < num_rows; row++)
            for (int i = 0; i < num_positions; i++) {
                uint32_t position = (uint32_t)positions[(ptrdiff_t)row * num_positions + i];
                uint64_t bits = philox(position, purposes[p], stream_keys[row], seeds[row]);
                *out++ = (double)(bits >> 11) * 0x1p-53;
            }
}
