/* The tile product of the instruction set that is being compiled. */
#if defined(BD_USE_AMX)
#include "tile_amx.h"
#elif defined(BD_USE_AVX512)
#include "tile_avx512.h"
#elif defined(BD_USE_AVX2)
#include "tile_avx2.h"
#else
#include "tile_portable.h"
#endif
