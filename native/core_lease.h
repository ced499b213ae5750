// Cores leased between the processes of a user: whoever computes a step holds the cores that it computes on.
//
// Threads of two processes on the same cores preempt each other, and a thread that was preempted holds up all others
// of its step at the end of the phase. So a pool takes as many cores as it has threads, for one step, and hands them on
// where another waits. A core is one byte of a file, locked by an open file description: the kernel releases it when
// the process ends, however it ends. A second byte for each core is the turnstile: who waits for cores holds those of
// its usable CPUs, so that whoever comes later, and whoever has just had its turn, comes after it. A process that was
// stopped (SIGSTOP, Ctrl-Z) keeps its locks: nobody waits for one, and steps then run beside what it left.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace headrace {

class CoreLease {
 public:
  static constexpr int kMaxCores = 1024;

  // `cores`: numbers of those that may be used; a step takes `count` of them. The file is made where there is none.
  // Throws std::system_error where it cannot be had or is not this user's alone.
  CoreLease(const std::string& file, std::vector<int> cores, int count);
  ~CoreLease();
  CoreLease(const CoreLease&) = delete;
  CoreLease& operator=(const CoreLease&) = delete;

  // Several pools of a process may share a lease. `owner` (not 0) says which of them computes.
  bool try_begin(uint32_t owner);
  void begin(uint32_t owner);  // waits
  // The step is over. `keep`: the cores stay here unless another process waits, and somebody will call give_up().
  void end(bool keep);
  // Hands the cores on if they are kept while nothing computes.
  void give_up();

  bool computing(uint32_t owner) const { return state_.load() == kOwners + owner; }
  // Whether the cores are kept and no other process waits for them.
  bool may_spin() const { return state_.load() == kKept && !wanted(); }

 private:
  struct Range {
    int first, count;
  };

  bool wanted() const;
  bool take_free_cores();
  void wait_for_cores();
  bool wait_for_turn();
  bool wait_for_all();
  bool take(int core);
  void release_cores();
  void set_wanted(uint32_t wanted);

  // What a core's state says: nobody's, about to change hands, kept; above that the owner that computes.
  enum : uint32_t { kFree, kChanging, kKept, kOwners };

  int fd_ = -1;
  // In the file, [kMaxCores] each: 1 while somebody waits for the core; the processes that last had it, and its
  // turnstile.
  std::atomic<uint32_t>*wanted_ = nullptr, *holders_ = nullptr, *waiters_ = nullptr;
  std::vector<int> cores_, held_;
  std::vector<Range> ranges_;  // the same cores, neighbours together
  size_t count_;
  std::atomic<uint32_t> state_{kFree};
};

}  // namespace headrace
