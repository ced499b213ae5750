// Cache blocks from one process to another, through a ring in memory that both have mapped.
//
// The sender copies a block into the ring piece by piece, the receiver copies it out into its new place past the
// caches, so the ring is all of the way that the caches hold. Both sum what passes, which costs nothing beside the
// copying. Each end publishes how far it is; an end that has waited for a moment says that it sleeps, and the other
// one then wakes it by an eventfd.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.h"

namespace headrace {

// Before the ring's bytes: bytes since the beginning, and who sleeps. Each on cache lines of its own, for the
// processor fetches them in pairs.
struct RingControl {
  alignas(128) std::atomic<uint64_t> filled, freed;
  alignas(128) std::atomic<uint32_t> sender_sleeps, receiver_sleeps;
};

// One end of a ring. The other one's word is not trusted beyond what keeps to the ring.
class Ring {
 public:
  static constexpr size_t kControlBytes = 4096;

  // `memory`: kControlBytes, zero at first, and `bytes` more, a multiple of kStripe. `wake`: the other end's eventfd.
  Ring(const Kernels& kernels, uint8_t* memory, size_t bytes, int wake)
      : kernels_(kernels),
        control_(*reinterpret_cast<RingControl*>(memory)),
        ring_(memory + kControlBytes),
        bytes_(bytes),
        wake_(wake) {}

  struct Block {
    uint8_t* data;  // not written to by a sender
    size_t bytes;
  };
  // Blocks to move, after those before have been. One end of a ring always sends, the other never.
  void start(std::vector<Block> blocks, bool sends);
  // Moves what can be moved. False: all is not, and this end's eventfd will tell when to go on.
  // Throws std::runtime_error when the other end has counted what cannot be.
  bool advance();
  // Of the blocks that have been moved.
  const std::vector<uint64_t>& checksums() const { return checksums_; }

 private:
  size_t available() const;
  bool wait();
  void move_piece(const Block& block, size_t available);
  void publish();

  const Kernels& kernels_;
  RingControl& control_;
  uint8_t* ring_;
  size_t bytes_;
  bool sends_ = false;
  int wake_;
  uint64_t position_ = 0;  // bytes since the beginning
  std::vector<Block> blocks_;
  size_t done_ = 0;  // bytes of the block under way
  BlockSum sum_;
  std::vector<uint64_t> checksums_;
};

}  // namespace headrace
