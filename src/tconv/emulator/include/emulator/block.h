// One block of CUDA threads: who is ready to run, who waits where, the barrier and the warps.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine.h"
#include "fiber.h"
#include "shared_memory.h"

namespace tconv_emulator {

enum class Order { ascending, descending, random };

constexpr unsigned max_block_size = 1024;
constexpr unsigned warp_size = 32;

struct Launch {
  const Kernel* kernel;
  std::vector<Argument> arguments;
  unsigned grid_size, block_size, shared_bytes;
  unsigned first_block, block_count, block_step;  // the blocks to run
  Order order;
  uint64_t seed;
  bool late_copies;
};

// An operation for which lanes of a warp meet. Two lanes meet if they name the same operation and mask.
struct Collective {
  const char* name;
  bool needs_every_lane;  // false: lanes that have left the kernel are not waited for
  bool orders_memory;
  // Called once when all have arrived, with what each lane brought; may be nullptr.
  void (*combine)(void* const brought[warp_size], unsigned lanes);
};

class Block;

struct Thread : ThreadContext {
  enum class State : uint8_t { ready, at_block_barrier, at_collective, at_shared_barrier, left };

  Block* owner = nullptr;
  Fiber* fiber = nullptr;
  unsigned number = 0;
  State state = State::ready;
  Place place{};  // where it waits, and at a collective: which, for whom, and what it brought
  const Collective* collective = nullptr;
  unsigned mask = 0;
  void* brought = nullptr;
  const void* barrier = nullptr;  // in shared memory

  unsigned warp() const { return number / warp_size; }
  unsigned lane() const { return number % warp_size; }
};

// Which threads of a block can run.
class ReadySet {
 public:
  void insert(unsigned number) { words_[number / 64] |= uint64_t{1} << number % 64; }
  void erase(unsigned number) { words_[number / 64] &= ~(uint64_t{1} << number % 64); }

  // Each wants a set that is not empty.
  unsigned lowest() const { return at_least(0); }
  unsigned highest() const;
  unsigned at_least(unsigned number) const;  // the lowest that is not below `number`, else the lowest of all

 private:
  uint64_t words_[max_block_size / 64] = {};
};

class Block : private BlockContext {
 public:
  explicit Block(const Launch& launch);
  ~Block();

  void run(unsigned number);

  // For the CUDA thread that is running.
  void barrier(Thread& thread, Place place);
  void meet(Thread& thread, const Collective& collective, unsigned mask, Place place, void* brought);

  void make(void* barrier, int arrivals, Place place);
  void arrive(void* barrier, Place place);
  void expect(void* barrier, int bytes, Place place);
  void wait(Thread& thread, void* barrier, unsigned parity, Place place);
  void ask(Thread& thread, const Job& job, Place place);
  void meet_some(Thread& thread, int number, int count, Place place);

  // For reports.
  std::string name() const;                                 // "block 3 of kernel tconv_kernel"
  std::string waiting_places() const;                       // a line for each place where threads wait
  std::string describe_address(const void* address) const;  // "" for one that is not the block's own

 private:
  struct Rendezvous {
    const Collective* collective;
    unsigned mask, arrived;
  };

  struct Warp {
    unsigned present = 0;  // lanes in the kernel
    unsigned left = 0;     // lanes that were
    unsigned pending_count = 0;
    Rendezvous pending[warp_size];  // a lane waits in at most one
    unsigned ordering_count = 0;
    unsigned ordering[64];  // the masks that have ordered memory; each has a cell
  };

  struct Asked {
    Job job;
    Thread* by;
    Place place;
  };

  void land(void* barrier, int bytes, Place place);
  void do_job(const Asked& asked);
  bool do_late_jobs();

  static void run_thread(void* thread);
  Thread& pick();
  void suspend(Thread& thread, Thread::State state, Place place);
  void wake(Thread& thread);
  void leave(Thread& thread);

  void open_barrier();
  void refuse_partial_warp(unsigned warp_number) const;

  Rendezvous& rendezvous(Warp& warp, const Collective& collective, unsigned mask);
  void check_lanes_present(unsigned warp_number, const Rendezvous& group);
  bool complete_if_all_arrived(unsigned warp_number, Rendezvous& group);
  void leave_warp(const Thread& thread);
  void* cell_of(unsigned warp_number, unsigned mask);

  std::string waiting_place(const Thread& thread) const;
  std::string missing_lanes(const Thread& thread) const;

  // Tells ThreadSanitizer that all that `chosen` threads did comes before all that they will do.
  template <class Chosen>
  void order_memory(void* cell, Chosen chosen) {
    if (!race::watched) return;
    void* own_context = race::current_context();
    for (void (*step)(void*) : {race::release, race::acquire}) {
      for (Thread& thread : threads_) {
        if (!chosen(thread)) continue;
        race::enter_context(thread.fiber->race_context());
        step(cell);
      }
    }
    race::enter_context(own_context);
  }

  const Launch& launch_;
  SharedMemory shared_memory_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  ReadySet ready_;
  unsigned threads_inside_ = 0;  // that have not left the kernel
  unsigned threads_ready_ = 0;
  unsigned at_barrier_ = 0;
  Place barrier_place_{};
  unsigned blocks_run_ = 0;
  uint64_t random_ = 0;
  // What is to happen in the background, in order. It has all its room from the start: memory that one CUDA thread
  // allocates and another frees would look like a race.
  std::vector<Asked> asked_;
  void* background_ = nullptr;  // who does it, to ThreadSanitizer
  static constexpr int numbered_barriers = 16;
  int arrived_[numbered_barriers] = {};  // at PTX bar.sync
};

inline Thread& running_thread() { return const_cast<Thread&>(static_cast<const Thread&>(*current)); }

}  // namespace tconv_emulator
