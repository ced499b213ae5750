// Kernels for AVX-512 with VNNI: one vector of sixteen lanes is one register, and there are thirty-two.
#define HEADRACE_AVX512VNNI
#define HEADRACE_KERNELS kAvx512Vnni
#define HEADRACE_ISA_NAME "avx512vnni"
#define HEADRACE_NUMERICS "fma"

// How much is held in registers at a time.
#define HEADRACE_MATRIX_ROWS 16, 12, 8, 7, 6, 5, 4, 3, 2, 1  // rows of a matrix product, one sum each
#define HEADRACE_ROWS_IN_FLIGHT 4  // of these, those with an integer sum as well
#define HEADRACE_SCORE_QUERIES 12, 6, 4, 3, 2, 1  // queries of a key product
#define HEADRACE_SCORE_SUMS 24  // queries times blocks of a key product
#define HEADRACE_BLEND_QUERIES 6, 3, 2, 1  // queries of a value product, four sums each

#include "kernels.inl"
