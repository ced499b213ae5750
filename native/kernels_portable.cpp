// Kernels for any processor, compiled for the platform's baseline.
#define HEADRACE_KERNELS kPortable
#define HEADRACE_ISA_NAME "portable"
#define HEADRACE_NUMERICS "separate"

namespace headrace {
namespace {
constexpr int kMaxRows = 4;
constexpr int kRowsInFlight = 2;
constexpr int kScoreTiles = 4;    // sums of one key block
constexpr int kBlendQueries = 2;   // sums of one value row, four registers each
}  // namespace
}  // namespace headrace

#include "kernels.inl"
