#include "ring.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace headrace {
namespace {

constexpr size_t kPiece = 64 << 10;  // bytes; the other end follows by one
// Longer than the other end takes for a piece, shorter than falling asleep and being woken.
constexpr std::chrono::microseconds kSpin(30);

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

uint64_t checksum(const BlockSum& sum, size_t bytes) {
  uint64_t mixed = bytes;
  const auto mix = [&](uint64_t x) {
    mixed = (mixed ^ x) * 0x9e3779b97f4a7c15;
    mixed ^= mixed >> 32;
  };
  for (uint64_t x : sum.sums) mix(x);
  for (uint64_t x : sum.totals) mix(x);
  return mixed;
}

}  // namespace

void Ring::start(std::vector<Block> blocks, bool sends) {
  sends_ = sends;
  blocks_ = std::move(blocks);
  checksums_.clear();
}

bool Ring::advance() {
  (sends_ ? control_.sender_sleeps : control_.receiver_sleeps).store(0, std::memory_order_relaxed);
  while (checksums_.size() < blocks_.size()) {
    const size_t ready = available();
    if (ready)
      move_piece(blocks_[checksums_.size()], ready);
    else if (!wait())
      return false;
  }
  return true;
}

// Bytes that may be moved now; what is left of the ring to a sender, what lies in it to a receiver.
size_t Ring::available() const {
  const uint64_t other = (sends_ ? control_.freed : control_.filled).load();
  const uint64_t ready = sends_ ? bytes_ - (position_ - other) : other - position_;
  if (ready > bytes_ || ready % kStripe) throw std::runtime_error("the other end counts bytes that a ring has not");
  return ready;
}

// For a moment. False: this end is now to sleep.
bool Ring::wait() {
  const auto until = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (available()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < until);
  (sends_ ? control_.sender_sleeps : control_.receiver_sleeps).store(1);
  return available() != 0;  // looked at once more, for the other end may have missed it
}

void Ring::move_piece(const Block& block, size_t available) {
  const size_t at = position_ % bytes_;
  const size_t size = std::min({available, kPiece, bytes_ - at, block.bytes - done_});
  const size_t whole = size / kStripe * kStripe, rest = size - whole;
  uint8_t *here = block.data + done_, *there = ring_ + at;
  kernels_.copy_summed(sends_ ? there : here, sends_ ? here : there, whole / kStripe, !sends_, &sum_);
  if (rest) {  // only at a block's end; the next one begins with a stripe of its own
    uint8_t last[kStripe] = {};
    std::memcpy(last, sends_ ? here + whole : there + whole, rest);
    std::memcpy(sends_ ? there + whole : here + whole, last, rest);
    kernels_.copy_summed(last, last, 1, false, &sum_);
  }
  position_ += (size + kStripe - 1) / kStripe * kStripe;
  done_ += size;
  if (done_ == block.bytes) {
    checksums_.push_back(checksum(sum_, block.bytes));
    sum_ = {};
    done_ = 0;
  }
  publish();
}

// Whoever sleeps is not woken for a single piece: where both ends share a core, each would then run for one only.
void Ring::publish() {
  (sends_ ? control_.filled : control_.freed).store(position_);
  std::atomic<uint32_t>& sleeps = sends_ ? control_.receiver_sleeps : control_.sender_sleeps;
  if (!sleeps.load() || (checksums_.size() < blocks_.size() && bytes_ - available() < bytes_ / 4)) return;
  sleeps.store(0);
  eventfd_write(wake_, 1);
}

}  // namespace headrace
