// Threads that share the work of a step: phases one after the other, the items of a phase among whoever is there.
//
// A phase is over when all its items are done, not when all threads have come: so the thread that submits a step can
// go and do something else while the others compute, and join when it collects.
//
// With a lease no thread computes or spins but on cores that the pool holds. Where they are not free when a step is
// started, it begins when it is collected, which waits for them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "core_lease.h"

namespace headrace {

class ThreadPool {
 public:
  struct Work {
    virtual ~Work() = default;
    virtual void run(int phase, int item) = 0;
  };

  // `threads` counts the one that calls finish().
  explicit ThreadPool(int threads);
  ~ThreadPool();

  // Compute on leased cores only; the lease must outlive the pool. Not while a step is in flight.
  void lease_cores(CoreLease* lease) { lease_ = lease; }

  int threads() const { return static_cast<int>(threads_.size()) + 1; }

  // Begin: phase p has items[p] items. Returns at once.
  void start(Work& work, const std::vector<int>& items);
  // Work along until all is done.
  void finish();

 private:
  struct Phase {
    alignas(64) std::atomic<int> next{0};
    alignas(64) std::atomic<int> done{0};
    int items = 0;
  };

  void stop();
  void open();
  void serve();
  bool wait_for_step(uint32_t seen);
  void participate();

  std::vector<std::thread> threads_;
  std::unique_ptr<Phase[]> phases_;
  int capacity_ = 0, count_ = 0;
  int last_ = -1;  // the last phase that has items
  Work* work_ = nullptr;
  std::atomic<CoreLease*> lease_{nullptr};
  const uint32_t owner_;  // how the pool signs a lease
  bool waits_ = false;  // a step was started, and there were no cores for it
  alignas(64) std::atomic<uint32_t> epoch_{0};
  alignas(64) std::atomic<bool> open_{false};
  alignas(64) std::atomic<int> inside_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace headrace
