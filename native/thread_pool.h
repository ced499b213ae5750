// Threads that share the work of a step: phases one after the other, the items of a phase among whoever is there.
//
// A phase is over when all its items are done, not when all threads have come: so the thread that submits a step can
// go and do something else while the others compute, and join when it collects.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

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
  void serve();
  void participate();

  std::vector<std::thread> threads_;
  std::unique_ptr<Phase[]> phases_;
  int capacity_ = 0, count_ = 0;
  Work* work_ = nullptr;
  alignas(64) std::atomic<uint32_t> epoch_{0};
  alignas(64) std::atomic<bool> open_{false};
  alignas(64) std::atomic<int> inside_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace headrace
