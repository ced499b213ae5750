// Kernels for AVX2 with FMA and F16C. Bit for bit those of AVX-512: the same operations over half the width.
#define HEADRACE_AVX2
#define HEADRACE_KERNELS kAvx2
#define HEADRACE_ISA_NAME "avx2"
#define HEADRACE_NUMERICS "fma"

namespace headrace {
namespace {
constexpr int kMaxRows = 4;      // rows whose sums of one tile are held in registers
constexpr int kRowsInFlight = 2;  // of these, the integer sums
constexpr int kScoreSums = 12;    // query times block of a key product
constexpr int kBlendQueries = 2;  // queries of a value product, four registers each
}  // namespace
}  // namespace headrace

#include "kernels.inl"
