// The blocks of a cluster, which run at the same time on one OS thread: whose turn it is, and where all of them meet. A
// block of a kernel without clusters is one by itself.
#pragma once

#include <memory>
#include <vector>

#include "block.h"

namespace tconv_emulator {

class Cluster {
 public:
  explicit Cluster(const Launch& launch);

  void run(unsigned first_block);

  // For the CUDA thread that is running, or has left.
  void barrier(Thread& thread, Place place);
  void open_barrier_if_all_arrived();
  Block& block(unsigned rank, const char* operation, Place place) const;

  // For reports.
  const std::vector<std::unique_ptr<Block>>& blocks() const { return blocks_; }

 private:
  void run_threads();
  Block* next();
  bool do_late_jobs();
  unsigned threads_inside() const;

  const Launch& launch_;
  std::vector<std::unique_ptr<Block>> blocks_;  // by their ranks
  unsigned at_barrier_ = 0;
  uint64_t random_ = 0;
};

}  // namespace tconv_emulator
