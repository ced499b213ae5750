// Kernels for AVX2 with FMA and F16C. Bit for bit those of AVX-512: the same operations over half the width.
#define HEADRACE_AVX2
#define HEADRACE_KERNELS kAvx2
#define HEADRACE_ISA_NAME "avx2"
#define HEADRACE_NUMERICS "fma"

namespace headrace {
namespace {
constexpr int kMaxRows = 4;
constexpr int kRowsInFlight = 2;
constexpr int kScoreTiles = 6;    // sums of one key block
constexpr int kBlendQueries = 2;   // sums of one value row, four registers each
}  // namespace
}  // namespace headrace

#include "kernels.inl"
