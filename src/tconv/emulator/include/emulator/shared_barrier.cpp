// Barriers in shared memory (PTX mbarrier), and copies and arrivals that happen in the background.

#include <cstring>

#include "block.h"
#include "report.h"

namespace tconv_emulator {

namespace {

// The 8 bytes of a barrier. Memory that nobody wrote is all ones.
struct State {
  uint64_t phase : 1, pending : 20, arrivals : 20;
  int64_t bytes : 23;  // that are expected and have not landed
};
static_assert(sizeof(State) == 8, "a barrier has 8 bytes");

constexpr unsigned unmade = (1u << 20) - 1;

State& state_of(void* barrier, const char* operation, Place place) {
  if (reinterpret_cast<uintptr_t>(barrier) % 8 != 0)
    fail("barrier", std::string(operation) + ": a barrier is not at a multiple of 8 bytes, " + text(place));
  State& state = *static_cast<State*>(barrier);
  if (state.arrivals == unmade || state.arrivals == 0)
    fail("barrier", std::string(operation) + ": no barrier was made there, or it was overwritten, " + text(place));
  return state;
}

}  // namespace

void Block::make(void* barrier, int arrivals, Place place) {
  if (reinterpret_cast<uintptr_t>(barrier) % 8 != 0 || arrivals <= 0)
    fail("barrier",
         "a barrier of " + std::to_string(arrivals) + " arrivals, or not at a multiple of 8 bytes, " + text(place));
  State& state = *static_cast<State*>(barrier);
  state.phase = 0;
  state.pending = state.arrivals = static_cast<unsigned>(arrivals);
  state.bytes = 0;
}

// Ends the phase if nothing is missing, and wakes those who wait for that.
void Block::land(void* barrier, int bytes, Place place) {
  State& state = state_of(barrier, "a copy", place);
  state.bytes -= bytes;
  if (state.pending > 0 || state.bytes != 0) return;
  state.phase ^= 1;
  state.pending = state.arrivals;
  for (Thread& thread : threads_)
    if (thread.state == Thread::State::at_shared_barrier && thread.barrier == barrier) wake(thread);
}

void Block::arrive(void* barrier, Place place) {
  State& state = state_of(barrier, "an arrival", place);
  if (state.pending == 0) fail("barrier", "more arrivals than the barrier was made for, " + text(place));
  race::release(barrier);
  --state.pending;
  land(barrier, 0, place);
}

void Block::expect(void* barrier, int bytes, Place place) {
  State& state = state_of(barrier, "expected bytes", place);
  state.bytes += bytes;
}

void Block::wait(Thread& thread, void* barrier, unsigned parity, Place place) {
  while (state_of(barrier, "a wait", place).phase == parity % 2) {
    thread.barrier = barrier;
    suspend(thread, Thread::State::at_shared_barrier, place);
    thread.fiber->suspend();
  }
  race::acquire(barrier);
}

// What is late knows of its asker what came before the asking, and nothing behind it.
void Block::do_job(const Asked& asked) {
  void* own_context = race::current_context();
  race::enter_context(late_copies ? background_ : asked.by->fiber->race_context());
  if (late_copies) race::acquire(asked.by);
  const Job& job = asked.job;
  if (job.copy) job.copy(job.to, job.from, job.bytes);
  if (job.barrier && job.arrives) {
    arrive(job.barrier, asked.place);
  } else if (job.barrier) {
    race::release(job.barrier);
    land(job.barrier, job.bytes, asked.place);
  }
  race::enter_context(own_context);
}

void Block::ask(Thread& thread, const Job& job, Place place) {
  const Asked asked = {job, &thread, place};
  if (!late_copies) {
    do_job(asked);
    return;
  }
  if (asked_.size() == asked_.capacity()) do_late_jobs();
  race::release(&thread);
  asked_.push_back(asked);
}

bool Block::do_late_jobs() {
  const size_t count = asked_.size();
  for (size_t number = 0; number < count; ++number) do_job(asked_[number]);
  asked_.erase(asked_.begin(), asked_.begin() + static_cast<long>(count));
  return count > 0;
}

// Who waits has the counter of the barrier as its `barrier`.
void Block::meet_some(Thread& thread, int number, int count, Place place) {
  if (number < 0 || number >= numbered_barriers || count % warp_size != 0)
    fail("barrier", "bar.sync " + std::to_string(number) + ", " + std::to_string(count) +
                        ": there are 16 barriers, for whole warps, " + text(place));
  int& arrived = arrived_[number];
  thread.barrier = &arrived;
  suspend(thread, Thread::State::at_shared_barrier, place);
  if (++arrived == count) {
    arrived = 0;
    const auto waits = [&](const Thread& other) {
      return other.state == Thread::State::at_shared_barrier && other.barrier == &arrived;
    };
    order_memory(&arrived, waits);
    for (Thread& other : threads_)
      if (waits(other)) wake(other);
  }
  thread.fiber->suspend();
}

void meet_threads(int number, int count, Place place) {
  Thread& thread = running_thread();
  thread.owner->meet_some(thread, number, count, place);
}

void refuse(const char* what, Place place) { fail("limit", std::string(what) + ", " + text(place)); }

void make_barrier(void* barrier, int arrivals, Place place) { running_thread().owner->make(barrier, arrivals, place); }
void arrive_at_barrier(void* barrier, Place place) { running_thread().owner->arrive(barrier, place); }
void expect_at_barrier(void* barrier, int bytes, Place place) { running_thread().owner->expect(barrier, bytes, place); }
void wait_at_barrier(void* barrier, unsigned parity, Place place) {
  Thread& thread = running_thread();
  thread.owner->wait(thread, barrier, parity, place);
}
void in_background(const Job& job, Place place) {
  Thread& thread = running_thread();
  thread.owner->ask(thread, job, place);
}

}  // namespace tconv_emulator
