#include "block.h"

#include <cstdio>
#include <cstring>

#include "report.h"

namespace tconv_emulator {

__thread const ThreadContext* current = nullptr;

namespace {

// Where every thread that leaves a kernel releases its memory to the launch that follows.
char end_of_launch;

enum Cell : unsigned { start_cell, barrier_cell };

// Jobs in the background; beyond them, the oldest happen.
constexpr size_t most_asked = 1 << 16;

uint64_t scrambled(uint64_t value) {
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
  value = (value ^ value >> 27) * 0x94d049bb133111ebu;
  return value ^ value >> 31;
}

bool same(Place one, Place other) {
  return one.line == other.line && (one.file == other.file || strcmp(one.file, other.file) == 0);
}

}  // namespace

// ---- who is ready ---------------------------------------------------------------------------------

unsigned ReadySet::highest() const {
  unsigned word = max_block_size / 64 - 1;
  while (!words_[word]) --word;
  return word * 64 + 63 - __builtin_clzll(words_[word]);
}

unsigned ReadySet::at_least(unsigned number) const {
  constexpr unsigned words = max_block_size / 64;
  uint64_t bits = words_[number / 64] & ~uint64_t{0} << number % 64;
  unsigned word = number / 64;
  while (!bits) {
    word = (word + 1) % words;
    bits = words_[word];
  }
  return word * 64 + __builtin_ctzll(bits);
}

// ---- a block from its start to its end ------------------------------------------------------------

Block::Block(const Launch& launch)
    : BlockContext{{0, 0, 0}, {launch.block_size}, {launch.grid_size}, nullptr, launch.late_copies},
      launch_(launch),
      shared_memory_(launch.shared_bytes),
      threads_(launch.block_size),
      warps_((launch.block_size + warp_size - 1) / warp_size) {
  const unsigned fiber_sets = race::watched && launch.block_count > 1 ? 2 : 1;
  for (unsigned number = 0; number < fiber_sets * launch.block_size; ++number)
    fibers_.push_back(std::make_unique<Fiber>(number));
  if (launch.late_copies) {
    asked_.reserve(most_asked);
    background_ = race::create_context();
    race::name_context(background_, "what happens in the background");
  }
  for (unsigned number = 0; number < launch.block_size; ++number) {
    Thread& thread = threads_[number];
    thread.block = this;
    thread.owner = this;
    thread.number = number;
    thread.index = {number, 0, 0};
  }
}

Block::~Block() {
  race::acquire(&end_of_launch);
  if (background_) race::destroy_context(background_);
}

void Block::run(unsigned number) {
  index = {number, 0, 0};
  shared = shared_memory_.renew();
  random_ = scrambled(launch_.seed * 0x9e3779b97f4a7c15u + number + 1);
  ++blocks_run_;
  at_barrier_ = 0;
  for (int& arrived : arrived_) arrived = 0;
  threads_inside_ = launch_.block_size;
  race::release(shared_memory_.cell(start_cell));
  for (Warp& warp : warps_) warp = {};
  // ThreadSanitizer takes what one fiber runs for ordered, and so what fibers do that met at a barrier. Blocks
  // are not ordered, so they deal the fibers out differently and take turns with two sets of them, in a
  // sequence (Thue and Morse's) in which blocks at any distance are somewhere in different sets.
  const unsigned shift = race::watched ? scrambled(number) % launch_.block_size : 0;
  const unsigned first_fiber = fibers_.size() > launch_.block_size ? __builtin_parity(number) * launch_.block_size : 0;
  for (Thread& thread : threads_) {
    thread.fiber = fibers_[first_fiber + (thread.number + shift) % launch_.block_size].get();
    thread.fiber->start(run_thread, &thread);
    warps_[thread.warp()].present |= 1u << thread.lane();
    wake(thread);
  }
  do {
    while (threads_ready_ > 0) {
      Thread& thread = pick();
      current = &thread;
      thread.fiber->resume();
      current = nullptr;
    }
  } while (do_late_jobs());
  if (threads_inside_ > 0) fail("deadlock", "no thread of " + name() + " can go on" + waiting_places());
}

Thread& Block::pick() {
  switch (launch_.order) {
    case Order::ascending:
      return threads_[ready_.lowest()];
    case Order::descending:
      return threads_[ready_.highest()];
    case Order::random:
      break;
  }
  random_ = random_ * 6364136223846793005u + 1442695040888963407u;
  return threads_[ready_.at_least((random_ >> 33) % launch_.block_size)];
}

void Block::run_thread(void* argument) {
  Thread& thread = *static_cast<Thread*>(argument);
  Block& block = *thread.owner;
  if (race::watched) {
    // Reports of an earlier block's accesses come with the fiber's present name.
    char name[96];
    const char* or_earlier = block.blocks_run_ > 1 ? " (or one of an earlier block)" : "";
    snprintf(name, sizeof name, "CUDA thread %u of block %u%s", thread.number, block.index.x, or_earlier);
    race::name_context(thread.fiber->race_context(), name);
  }
  race::acquire(block.shared_memory_.cell(start_cell));
  block.launch_.kernel->call(block.launch_.arguments.data());
  race::release(&end_of_launch);
  block.leave(thread);
  thread.fiber->finish();
}

void Block::suspend(Thread& thread, Thread::State state, Place place) {
  thread.state = state;
  thread.place = place;
  ready_.erase(thread.number);
  --threads_ready_;
}

void Block::wake(Thread& thread) {
  thread.state = Thread::State::ready;
  ready_.insert(thread.number);
  ++threads_ready_;
}

// ---- the barrier ----------------------------------------------------------------------------------

// Hardware lets a barrier through when all threads that have not left have arrived. It leaves undefined
// what happens when threads arrive at different barriers, or a part of a warp arrives and the rest has left.
void Block::barrier(Thread& thread, Place place) {
  if (at_barrier_ == 0) barrier_place_ = place;
  suspend(thread, Thread::State::at_block_barrier, place);
  if (!same(place, barrier_place_)) {
    fail("divergence", "the threads of a block arrive at different __syncthreads, " + text(barrier_place_) + " and " +
                           text(place) + waiting_places());
  }
  ++at_barrier_;
  if (warps_[thread.warp()].left) refuse_partial_warp(thread.warp());
  if (at_barrier_ == threads_inside_) open_barrier();
  thread.fiber->suspend();
}

void Block::open_barrier() {
  at_barrier_ = 0;
  order_memory(shared_memory_.cell(barrier_cell),
               [](const Thread& thread) { return thread.state == Thread::State::at_block_barrier; });
  for (Thread& thread : threads_) {
    if (thread.state == Thread::State::at_block_barrier) wake(thread);
  }
}

void Block::refuse_partial_warp(unsigned warp_number) const {
  fail("divergence", "a part of warp " + std::to_string(warp_number) +
                         " is at __syncthreads and the rest has left the kernel" + waiting_places());
}

void Block::leave(Thread& thread) {
  suspend(thread, Thread::State::left, {});
  --threads_inside_;
  leave_warp(thread);
  if (at_barrier_ == 0) return;
  for (const Thread& other : threads_) {
    if (other.warp() == thread.warp() && other.state == Thread::State::at_block_barrier)
      refuse_partial_warp(thread.warp());
  }
  if (at_barrier_ == threads_inside_) open_barrier();
}

void block_barrier(Place place) {
  Thread& thread = running_thread();
  thread.owner->barrier(thread, place);
}

}  // namespace tconv_emulator
