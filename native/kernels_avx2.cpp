// Kernels for AVX2 with FMA and F16C. Bit for bit those of AVX-512: the same operations over half the width.
#define HEADRACE_AVX2
#define HEADRACE_KERNELS kAvx2
#define HEADRACE_ISA_NAME "avx2"
#define HEADRACE_NUMERICS "fma"

// How much is held in registers at a time.
#define HEADRACE_MATRIX_ROWS 4, 3, 2, 1  // rows of a matrix product, one sum each
#define HEADRACE_ROWS_IN_FLIGHT 2  // of these, those with an integer sum as well
#define HEADRACE_SCORE_QUERIES 6, 4, 3, 2, 1  // queries of a key product
#define HEADRACE_SCORE_SUMS 12  // queries times blocks of a key product
#define HEADRACE_BLEND_QUERIES 2, 1  // queries of a value product, four sums each

#include "kernels.inl"
