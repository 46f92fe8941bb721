#include "cluster.h"

#include "report.h"

namespace tconv_emulator {

Cluster::Cluster(const Launch& launch) : launch_(launch) {
  for (unsigned rank = 0; rank < launch.kernel->cluster_size; ++rank)
    blocks_.push_back(std::make_unique<Block>(launch, *this, rank));
}

void Cluster::run(unsigned first_block) {
  at_barrier_ = 0;
  random_ = launch_.seed + first_block;
  for (size_t rank = 0; rank < blocks_.size(); ++rank) blocks_[rank]->start(first_block + static_cast<unsigned>(rank));
  do {
    run_threads();
  } while (do_late_jobs());
  if (threads_inside() == 0) return;
  std::string waiting;
  for (const auto& block : blocks_) {
    if (!waiting.empty()) waiting += "\n";
    waiting += "no thread of " + block->name() + " can go on" + block->waiting_places();
  }
  fail("deadlock", waiting);
}

// A block alone needs no turns, and so is faster.
void Cluster::run_threads() {
  if (blocks_.size() == 1) return blocks_[0]->run_threads();
  while (Block* block = next()) block->run_a_thread();
}

// The block whose turn it is, in the order of threads; nullptr where no thread can go on.
Block* Cluster::next() {
  const size_t count = blocks_.size();
  size_t place = 0;
  if (launch_.order == Order::random) {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    place = (random_ >> 33) % count;
  }
  for (size_t tried = 0; tried < count; ++tried) {
    Block& block = *blocks_[launch_.order == Order::descending ? count - 1 - place : place];
    if (block.can_run()) return &block;
    if (++place == count) place = 0;
  }
  return nullptr;
}

bool Cluster::do_late_jobs() {
  bool any = false;
  for (const auto& block : blocks_) any |= block->do_late_jobs();
  return any;
}

unsigned Cluster::threads_inside() const {
  unsigned inside = 0;
  for (const auto& block : blocks_) inside += block->threads_inside();
  return inside;
}

// ---- meeting --------------------------------------------------------------------------------------

void Cluster::barrier(Thread& thread, Place place) {
  ++at_barrier_;
  thread.owner->suspend(thread, Thread::State::at_cluster_barrier, place);
  open_barrier_if_all_arrived();
  thread.fiber->suspend();
}

// Threads that have left are not waited for.
void Cluster::open_barrier_if_all_arrived() {
  if (at_barrier_ == 0 || at_barrier_ < threads_inside()) return;
  at_barrier_ = 0;
  const auto waits = [](const Thread& thread) { return thread.state == Thread::State::at_cluster_barrier; };
  void* own_context = race::current_context();
  for (void (*step)(void*) : {race::release, race::acquire})
    for (const auto& block : blocks_) block->order_step(step, this, waits);
  race::enter_context(own_context);
  for (const auto& block : blocks_) block->wake_all(Thread::State::at_cluster_barrier);
}

void cluster_barrier(Place place) {
  Thread& thread = running_thread();
  thread.owner->cluster().barrier(thread, place);
}

// ---- reaching other blocks' shared memory ---------------------------------------------------------

Block& Cluster::block(unsigned rank, const char* operation, Place place) const {
  if (rank >= blocks_.size())
    fail("cluster", std::string(operation) + " reaches block " + std::to_string(rank) + " of a cluster of " +
                        std::to_string(blocks_.size()) + ", " + text(place));
  return *blocks_[rank];
}

void Block::refuse_if_ended(const Block& from, const char* operation, Place place) const {
  if (&from != this && threads_inside_ == 0)
    fail("cluster", std::string(operation) + " of block " + std::to_string(from.index.x) +
                        " reaches the shared memory of block " + std::to_string(index.x) + ", which had ended, " +
                        text(place));
}

void* Block::same_place(void* own, const Block& there, Place place) const {
  long offset;
  if (!shared_memory_.contains(own, &offset))
    fail("cluster", "what does not lie in a block's shared memory has no place in another's, " + text(place));
  return there.shared + offset;
}

void arrive_in_cluster(void* barrier, int rank, Place place) {
  constexpr const char* operation = "an arrival";
  Block& own = *running_thread().owner;
  Block& there = own.cluster().block(static_cast<unsigned>(rank), operation, place);
  there.refuse_if_ended(own, operation, place);
  there.arrive(own.same_place(barrier, there, place), own, place);
}

void in_background_of_cluster(const Job& job, unsigned blocks, Place place) {
  Thread& thread = running_thread();
  const Block& own = *thread.owner;
  for (unsigned left = blocks; left; left &= left - 1) {
    Block& there = own.cluster().block(static_cast<unsigned>(__builtin_ctz(left)), "a copy", place);
    Job of_block = job;
    of_block.to = own.same_place(job.to, there, place);
    of_block.barrier = own.same_place(job.barrier, there, place);
    thread.owner->ask(thread, of_block, there, place);
  }
}

}  // namespace tconv_emulator
