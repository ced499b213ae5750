#include "core_lease.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace headrace {
namespace {

static_assert(std::atomic<uint32_t>::is_always_lock_free);
constexpr off_t kFileBytes = CoreLease::kMaxCores * sizeof(uint32_t);
constexpr off_t kTurnstile = CoreLease::kMaxCores;  // after the cores' own bytes

[[noreturn]] void fail(int error, const char* what) { throw std::system_error(error, std::generic_category(), what); }

// Locks or unlocks bytes; false where another holds one of them. A lock that the system cannot give (ENOLCK) counts as
// given: computing without a lease is no worse than without the file.
bool set_lock(int fd, int command, short type, off_t first, off_t count = 1) {
  struct flock range{};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = first;
  range.l_len = count;
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

void CoreLease::wait_for_cores() {
  // In ascending order, as all do: so no two can wait for each other.
  for (const Range& r : ranges_) set_lock(fd_, kWait, F_WRLCK, kTurnstile + r.first, r.count);
  set_wanted(1);
  while (true) {
    int busy = -1;
    for (size_t i = 0; i < cores_.size() && held_.size() < count_; ++i)
      if (std::find(held_.begin(), held_.end(), cores_[i]) == held_.end() && !take(cores_[i])) busy = cores_[i];
    if (held_.size() == count_) break;
    set_lock(fd_, kWait, F_WRLCK, busy);
    held_.push_back(busy);
  }
  set_wanted(0);
  for (const Range& r : ranges_) set_lock(fd_, kTry, F_UNLCK, kTurnstile + r.first, r.count);
}

// Only who holds the turnstile of all its cores may.
void CoreLease::set_wanted(uint32_t wanted) {
  for (int core : cores_) wanted_[core].store(wanted);
}

}  // namespace headrace
