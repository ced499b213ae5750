#include "thread_pool.h"

#include <sched.h>

#include <chrono>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace headrace {
namespace {

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits a moment; lets another process have the core now and then.
class Spin {
 public:
  void once() {
    relax();
    if (++spins_ % 256 == 0) sched_yield();
  }

 private:
  unsigned spins_ = 0;
};

// The rounding mode is part of the numerics: a host program may have changed it on its own thread.
class Rounding {
#if defined(__x86_64__)
 public:
  Rounding() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~Rounding() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#endif
};

constexpr auto kPatience = std::chrono::microseconds(300);  // the pause between two steps is shorter

uint32_t next_owner() {
  static std::atomic<uint32_t> owners{0};
  return ++owners;
}

}  // namespace

ThreadPool::ThreadPool(int threads) : owner_(next_owner()) {
  try {
    for (int i = 1; i < threads; ++i) threads_.emplace_back([this] { serve(); });
  } catch (...) {  // the system gives no more threads
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stop_ = true;
  ++epoch_;
  epoch_.notify_all();
  for (auto& thread : threads_) thread.join();
  if (lease_) lease_.load()->give_up();
}

void ThreadPool::start(Work& work, const std::vector<int>& items) {
  // A thread that was late for the last step may still be looking at its counters.
  for (Spin spin; inside_.load(std::memory_order_acquire);) spin.once();
  count_ = static_cast<int>(items.size());
  if (count_ > capacity_) {
    capacity_ = count_;
    phases_ = std::make_unique<Phase[]>(capacity_);
  }
  last_ = -1;
  for (int p = 0; p < count_; ++p) {
    if (items[p] > 0) last_ = p;
    phases_[p].next.store(0, std::memory_order_relaxed);
    phases_[p].done.store(0, std::memory_order_relaxed);
    phases_[p].items = items[p];
  }
  work_ = &work;
  // Alone, the thread that collects is the only one that computes: until then it has no use for a core.
  waits_ = lease_ && last_ >= 0 && (threads_.empty() || !lease_.load()->try_begin(owner_));
  if (!waits_) open();
}

void ThreadPool::open() {
  open_.store(true);
  ++epoch_;
  epoch_.notify_all();
}

void ThreadPool::finish() {
  if (waits_) {
    waits_ = false;
    lease_.load()->begin(owner_);
    open();
  }
  participate();
  open_.store(false);
}

void ThreadPool::serve() {
  uint32_t seen = 0;
  while (true) {
    if (!wait_for_step(seen)) epoch_.wait(seen);
    seen = epoch_.load(std::memory_order_acquire);
    if (stop_) return;
    ++inside_;
    // Whoever comes after the step has been collected finds the door closed.
    if (open_.load()) participate();
    --inside_;
  }
}

// Spins for a while; false where no step came, and the cores, if they were kept, have been handed on.
bool ThreadPool::wait_for_step(uint32_t seen) {
  CoreLease* const lease = lease_;
  auto until = std::chrono::steady_clock::now() + kPatience;
  for (Spin spin; epoch_.load(std::memory_order_acquire) == seen; spin.once()) {
    const auto now = std::chrono::steady_clock::now();
    if (lease && lease->computing(owner_)) {
      until = now + kPatience;  // the step's last thread is about to keep the cores, and somebody must watch them
    } else if (now > until || (lease && !lease->may_spin())) {
      if (lease) lease->give_up();
      return false;
    }
  }
  return true;
}

void ThreadPool::participate() {
  const Rounding rounding;
  for (int p = 0; p < count_; ++p) {
    Phase& phase = phases_[p];
    for (int item; (item = phase.next.load(std::memory_order_relaxed)) < phase.items;) {
      item = phase.next.fetch_add(1, std::memory_order_relaxed);
      if (item >= phase.items) break;
      work_->run(p, item);
      const bool over = phase.done.fetch_add(1, std::memory_order_acq_rel) + 1 == phase.items;
      if (over && p == last_ && lease_) lease_.load()->end(!threads_.empty());
    }
    for (Spin spin; phase.done.load(std::memory_order_acquire) < phase.items;) spin.once();
  }
}

}  // namespace headrace
