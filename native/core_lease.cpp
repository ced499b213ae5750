#include "core_lease.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

namespace headrace {
namespace {

static_assert(std::atomic<uint32_t>::is_always_lock_free);
constexpr off_t kFileBytes = 3 * CoreLease::kMaxCores * sizeof(uint32_t);
constexpr off_t kTurnstile = CoreLease::kMaxCores;  // after the cores' own bytes

[[noreturn]] void fail(int error, const char* what) { throw std::system_error(error, std::generic_category(), what); }

struct flock bytes_of_file(short type, off_t first, off_t count) {
  struct flock range{};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = first;
  range.l_len = count;
  return range;
}

// Locks or unlocks bytes; false where another holds one of them. A lock that the system cannot give (ENOLCK) counts as
// given: computing without a lease is no worse than without the file.
bool set_lock(int fd, int command, short type, off_t first, off_t count = 1) {
  struct flock range = bytes_of_file(type, first, count);
  int failed;
  do failed = fcntl(fd, command, &range);
  while (failed && errno == EINTR);
  return !failed || (errno != EAGAIN && errno != EACCES);
}

#ifdef F_OFD_SETLK
constexpr int kTry = F_OFD_SETLK, kWait = F_OFD_SETLKW;
#else
constexpr int kTry = F_SETLK, kWait = F_SETLKW;  // held by the process
#endif

#if defined(__linux__) && defined(SIGEV_THREAD_ID)
// While it lives, a system call in which this thread waits is interrupted every second.
class Interruptions {
 public:
  Interruptions() {
    static const bool handled = handle();
    if (!handled) return;
    struct sigevent event{};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = signal();
    event._sigev_un._tid = pid_t(syscall(SYS_gettid));
    if (timer_create(CLOCK_MONOTONIC, &event, &timer_)) return;
    made_ = true;
    const struct itimerspec second{{1, 0}, {1, 0}};
    timer_settime(timer_, 0, &second, nullptr);
  }
  ~Interruptions() {
    if (made_) timer_delete(timer_);
  }
  Interruptions(const Interruptions&) = delete;
  Interruptions& operator=(const Interruptions&) = delete;

 private:
  static int signal() { return SIGRTMAX - 3; }
  static bool handle() {
    struct sigaction action{};
    if (sigaction(signal(), nullptr, &action) || action.sa_handler != SIG_DFL) return false;
    action.sa_handler = [](int) {};  // without SA_RESTART: it is there to interrupt
    return !sigaction(signal(), &action, nullptr);
  }

  timer_t timer_{};
  bool made_ = false;
};

bool is_stopped(uint32_t process) {
  char name[32], about[512];
  std::snprintf(name, sizeof name, "/proc/%u/stat", process);
  const int fd = open(name, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const ssize_t size = read(fd, about, sizeof about - 1);
  close(fd);
  about[std::max<ssize_t>(size, 0)] = 0;
  const char* state = std::strrchr(about, ')');  // a name may hold anything
  return state && state[1] && (state[2] == 'T' || state[2] == 't');
}
#else
class Interruptions {};
bool is_stopped(uint32_t) { return false; }
#endif

// Waits until nobody else holds the bytes; false where one of the processes that may hold them is stopped.
bool wait_for_lock(int fd, off_t first, int count, const std::atomic<uint32_t>* processes) {
  while (!set_lock(fd, kTry, F_WRLCK, first, count)) {
    for (int i = 0; i < count; ++i)
      if (is_stopped(processes[i].load())) return false;
    struct flock range = bytes_of_file(F_WRLCK, first, count);
    const Interruptions looking_again;
    if (!fcntl(fd, kWait, &range) || errno != EINTR) break;
  }
  return true;
}

int open_file(const std::string& file) {
  const int fd = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) fail(errno, "cannot be opened");
  struct stat about;
  int error = fstat(fd, &about) ? errno : 0;
  if (!error && (!S_ISREG(about.st_mode) || about.st_uid != geteuid() || (about.st_mode & 077))) error = EPERM;
  // Its pages are taken now: a full disk must not fail a write to the map.
  if (!error && about.st_size < kFileBytes) error = posix_fallocate(fd, 0, kFileBytes);
  if (error) {
    close(fd);
    fail(error, "cannot be used");
  }
  return fd;
}

}  // namespace

CoreLease::CoreLease(const std::string& file, std::vector<int> cores, int count) : cores_(std::move(cores)) {
  std::sort(cores_.begin(), cores_.end());
  if (cores_.empty() || cores_.front() < 0 || cores_.back() >= kMaxCores) fail(EINVAL, "no such cores");
  for (int core : cores_)
    if (!ranges_.empty() && ranges_.back().first + ranges_.back().count == core)
      ++ranges_.back().count;
    else
      ranges_.push_back({core, 1});
  count_ = std::clamp(size_t(std::max(count, 1)), size_t(1), cores_.size());
  held_.reserve(count_);
  fd_ = open_file(file);
  void* map = mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (map == MAP_FAILED) {
    const int error = errno;
    close(fd_);
    fail(error, "cannot be mapped");
  }
  wanted_ = static_cast<std::atomic<uint32_t>*>(map);
  holders_ = wanted_ + kMaxCores;
  waiters_ = holders_ + kMaxCores;
}

CoreLease::~CoreLease() {
  munmap(wanted_, kFileBytes);
  close(fd_);  // which releases what is held
}

bool CoreLease::try_begin(uint32_t owner) {
  uint32_t kept = kKept;
  if (!wanted() && state_.compare_exchange_strong(kept, kOwners + owner)) return true;
  give_up();
  uint32_t free = kFree;
  if (!state_.compare_exchange_strong(free, kChanging)) return false;
  const bool taken = take_free_cores();
  state_.store(taken ? kOwners + owner : kFree);
  state_.notify_all();
  return taken;
}

void CoreLease::begin(uint32_t owner) {
  while (!try_begin(owner)) {
    uint32_t state = kFree;
    if (state_.compare_exchange_strong(state, kChanging)) {
      wait_for_cores();
      state_.store(kOwners + owner);
      return;
    }
    if (state != kKept) state_.wait(state);  // another pool of this process computes
  }
}

void CoreLease::end(bool keep) {
  if (keep && !wanted()) {
    state_.store(kKept);
  } else {
    release_cores();
    state_.store(kFree);
  }
  state_.notify_all();
}

void CoreLease::give_up() {
  uint32_t kept = kKept;
  if (!state_.compare_exchange_strong(kept, kChanging)) return;
  release_cores();
  state_.store(kFree);
  state_.notify_all();
}

// Whether another process waits for one of the cores.
bool CoreLease::wanted() const {
  for (int core : cores_)
    if (wanted_[core].load(std::memory_order_relaxed)) return true;
  return false;
}

bool CoreLease::take(int core) {
  if (!set_lock(fd_, kTry, F_WRLCK, core)) return false;
  holders_[core].store(uint32_t(getpid()));
  held_.push_back(core);
  return true;
}

void CoreLease::release_cores() {
  for (int core : held_) set_lock(fd_, kTry, F_UNLCK, core);
  held_.clear();
}

// As many cores as a step needs, if they are free and nobody waits; else none.
bool CoreLease::take_free_cores() {
  size_t passed = 0;
  while (passed < ranges_.size() &&
         set_lock(fd_, kTry, F_WRLCK, kTurnstile + ranges_[passed].first, ranges_[passed].count))
    ++passed;
  if (passed == ranges_.size()) {
    set_wanted(0);  // what somebody left who was killed while it waited
    for (size_t i = 0; i < cores_.size() && held_.size() < count_; ++i) take(cores_[i]);
  }
  const bool enough = held_.size() == count_;
  if (!enough) release_cores();
  for (size_t i = 0; i < passed; ++i) set_lock(fd_, kTry, F_UNLCK, kTurnstile + ranges_[i].first, ranges_[i].count);
  return enough;
}

// Without any of them where one that it needs is held by a process that is stopped.
void CoreLease::wait_for_cores() {
  if (wait_for_turn()) {
    set_wanted(1);
    if (!wait_for_all()) release_cores();
    set_wanted(0);
  }
  for (const Range& r : ranges_) set_lock(fd_, kTry, F_UNLCK, kTurnstile + r.first, r.count);
}

bool CoreLease::wait_for_turn() {
  // In ascending order, as all do: so no two can wait for each other.
  for (const Range& r : ranges_) {
    if (!wait_for_lock(fd_, kTurnstile + r.first, r.count, waiters_ + r.first)) return false;
    for (int i = 0; i < r.count; ++i) waiters_[r.first + i].store(uint32_t(getpid()));
  }
  return true;
}

bool CoreLease::wait_for_all() {
  while (true) {
    int busy = -1;
    for (size_t i = 0; i < cores_.size() && held_.size() < count_; ++i)
      if (std::find(held_.begin(), held_.end(), cores_[i]) == held_.end() && !take(cores_[i])) busy = cores_[i];
    if (held_.size() == count_) return true;
    if (!wait_for_lock(fd_, busy, 1, holders_ + busy)) return false;
    holders_[busy].store(uint32_t(getpid()));
    held_.push_back(busy);
  }
}

// Only who holds the turnstile of all its cores may.
void CoreLease::set_wanted(uint32_t wanted) {
  for (int core : cores_) wanted_[core].store(wanted);
}

}  // namespace headrace
