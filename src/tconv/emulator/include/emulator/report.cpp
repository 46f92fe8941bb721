#include "report.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace tconv_emulator {

namespace {

std::string relative_to(const std::string& memory, long offset, long bytes) {
  if (offset < 0) return "the address is " + std::to_string(-offset) + " bytes before the start of " + memory;
  if (offset < bytes) return "the address is byte " + std::to_string(offset) + " of " + memory;
  return "the address is " + std::to_string(offset - bytes) + " bytes past the end of " + memory;
}

// "thread 17 of block 3 of kernel tconv_kernel", or nothing outside of a kernel.
std::string where() {
  if (!current) return "";
  const Thread& thread = running_thread();
  return "thread " + std::to_string(thread.number) + " of " + thread.owner->name();
}

void print(const std::string& line) {
  fflush(stderr);
  const std::string whole = "tconv emulator: " + line + "\n";
  if (write(STDERR_FILENO, whole.data(), whole.size()) < 0) _exit(exit_error);
}

void on_sanitizer_report() {
  if (!current) return;
  const void* address = address::faulty_address();
  const std::string about = address ? running_thread().owner->describe_address(address) : "";
  print("in " + where() + (about.empty() ? "" : ": " + about));
}

#if !defined(TCONV_EMULATOR_ADDRESS) && !defined(TCONV_EMULATOR_THREAD)

void on_signal(int signal, siginfo_t* info, void*) {
  const bool has_address = signal == SIGSEGV || signal == SIGBUS;
  const std::string about = current && has_address ? running_thread().owner->describe_address(info->si_addr) : "";
  fail("crash", std::string(strsignal(signal)) + (about.empty() ? "" : ", " + about));
}

#endif

}  // namespace

void fail(const char* kind, const std::string& message) {
  const std::string place = where();
  print(kind + (": " + message) + (place.empty() ? "" : "\n  seen in " + place));
  _exit(exit_error);
}

std::string text(Place place) { return std::string(place.file) + ":" + std::to_string(place.line); }

std::string hexadecimal(unsigned mask) {
  char digits[16];
  snprintf(digits, sizeof digits, "0x%08x", mask);
  return digits;
}

std::string ranges(const std::vector<unsigned>& ascending) {
  std::string result;
  for (size_t first = 0; first < ascending.size();) {
    size_t last = first;
    while (last + 1 < ascending.size() && ascending[last + 1] == ascending[last] + 1) ++last;
    if (!result.empty()) result += ", ";
    result += std::to_string(ascending[first]);
    if (last > first) result += "-" + std::to_string(ascending[last]);
    first = last + 1;
  }
  return result;
}

std::string lane_ranges(unsigned mask) {
  std::vector<unsigned> lanes;
  for (unsigned lane = 0; lane < warp_size; ++lane)
    if (mask >> lane & 1) lanes.push_back(lane);
  return ranges(lanes);
}

void report_crashes() {
  on_sanitizer_error(on_sanitizer_report);
#if !defined(TCONV_EMULATOR_ADDRESS) && !defined(TCONV_EMULATOR_THREAD)
  // The stack in use may be what overflowed, so the report gets one of its own on each OS thread.
  constexpr size_t bytes = 64 * 1024;
  stack_t stack = {};
  stack.ss_sp = malloc(bytes);
  stack.ss_size = bytes;
  sigaltstack(&stack, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigaction(signal, &action, nullptr);
#endif
}

// ---- what a block tells ----------------------------------------------------------------------------------

std::string Block::name() const { return "block " + std::to_string(index.x) + " of kernel " + launch_.kernel->name; }

std::string Block::waiting_places() const {
  struct Group {
    std::string place;
    std::vector<unsigned> threads;
  };
  std::vector<Group> groups;
  for (const Thread& thread : threads_) {
    const std::string place = waiting_place(thread);
    size_t group = 0;
    while (group < groups.size() && groups[group].place != place) ++group;
    if (group == groups.size()) groups.push_back({place, {}});
    groups[group].threads.push_back(thread.number);
  }
  std::string lines;
  for (const Group& group : groups)
    lines += (group.threads.size() > 1 ? "\n  threads " : "\n  thread ") + ranges(group.threads) + ": " + group.place;
  return lines;
}

std::string Block::waiting_place(const Thread& thread) const {
  switch (thread.state) {
    case Thread::State::ready:
      return "still running";
    case Thread::State::left:
      return "left the kernel";
    case Thread::State::at_block_barrier:
      return "at __syncthreads, " + text(thread.place);
    case Thread::State::at_shared_barrier:
      return "at a barrier in shared memory, " + text(thread.place);
    case Thread::State::at_collective:
      break;
  }
  return "at " + std::string(thread.collective->name) + " with mask " + hexadecimal(thread.mask) + ", " +
         text(thread.place) + missing_lanes(thread);
}

std::string Block::describe_address(const void* address) const {
  for (const Thread& thread : threads_) {
    if (thread.fiber->overflowed_at(address)) {
      return "the local variables of thread " + std::to_string(thread.number) + " need more than its stack of " +
             std::to_string(Fiber::stack_bytes / 1024) + " KiB";
    }
  }
  long offset;
  if (shared_memory_.contains(address, &offset)) {
    const long bytes = static_cast<long>(shared_memory_.bytes());
    return relative_to("the block's " + std::to_string(bytes) + " bytes of shared memory", offset, bytes);
  }
  std::string nearest;
  long least_distance = 4096;  // beyond that, the address has nothing to do with an argument
  for (size_t number = 0; number < launch_.arguments.size(); ++number) {
    const Argument& argument = launch_.arguments[number];
    if (!argument.pointer) continue;
    offset = static_cast<const char*>(address) - static_cast<const char*>(argument.pointer);
    const long distance = offset < 0 ? -offset : std::max(0l, offset - static_cast<long>(argument.integer));
    if (distance >= least_distance) continue;
    least_distance = distance;
    const std::string bytes = std::to_string(argument.integer);
    nearest = relative_to("argument " + std::to_string(number) + " of " + bytes + " bytes", offset, argument.integer);
  }
  return nearest;
}

}  // namespace tconv_emulator
