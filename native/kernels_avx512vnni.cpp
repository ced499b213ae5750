// Kernels for AVX-512 with VNNI: one vector of sixteen lanes is one register, and there are thirty-two.
#define HEADRACE_AVX512VNNI
#define HEADRACE_KERNELS kAvx512Vnni
#define HEADRACE_ISA_NAME "avx512vnni"
#define HEADRACE_NUMERICS "fma"

namespace headrace {
namespace {
constexpr int kMaxRows = 16;      // sums of one tile held in registers
constexpr int kRowsInFlight = 4;  // integer sums beside them
constexpr int kScoreTiles = 24;    // sums of one key block
constexpr int kBlendQueries = 6;   // sums of one value row, four registers each
}  // namespace
}  // namespace headrace

#include "kernels.inl"
