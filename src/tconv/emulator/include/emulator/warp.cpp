// Lanes of a warp that meet: any number of groups of one warp can wait at a time, each for the lanes of
// its own mask. On top of that: __syncwarp, the shuffles and the votes. They are also the pattern for a
// further collective, which needs a struct of what a lane brings and takes, a combine function, and a
// `Collective` that names them.

#include "block.h"
#include "report.h"

namespace tconv_emulator {

// ---- meeting --------------------------------------------------------------------------------------

void Block::meet(Thread& thread, const Collective& collective, unsigned mask, Place place, void* brought) {
  Warp& warp = warps_[thread.warp()];
  thread.collective = &collective;
  thread.mask = mask;
  thread.brought = brought;
  suspend(thread, Thread::State::at_collective, place);
  if (!(mask >> thread.lane() & 1)) {
    fail("warp", "lane " + std::to_string(thread.lane()) + " calls " + collective.name + " with mask " +
                     hexadecimal(mask) + ", which lacks this lane, " + text(place));
  }
  Rendezvous& group = rendezvous(warp, collective, mask);
  group.arrived |= 1u << thread.lane();
  check_lanes_present(thread.warp(), group);
  complete_if_all_arrived(thread.warp(), group);
  thread.fiber->suspend();
}

Block::Rendezvous& Block::rendezvous(Warp& warp, const Collective& collective, unsigned mask) {
  for (unsigned i = 0; i < warp.pending_count; ++i) {
    Rendezvous& pending = warp.pending[i];
    if (pending.collective == &collective && pending.mask == mask) return pending;
  }
  return warp.pending[warp.pending_count++] = {&collective, mask, 0};
}

void Block::check_lanes_present(unsigned warp_number, const Rendezvous& group) {
  const unsigned absent = group.mask & ~warps_[warp_number].present;
  if (!group.collective->needs_every_lane || !absent) return;
  fail("warp", std::string(group.collective->name) + " with mask " + hexadecimal(group.mask) + " in warp " +
                   std::to_string(warp_number) +
                   ", but these lanes have left the kernel or never were: " + lane_ranges(absent) + waiting_places());
}

bool Block::complete_if_all_arrived(unsigned warp_number, Rendezvous& group) {
  Warp& warp = warps_[warp_number];
  if (group.arrived != (group.mask & warp.present)) return false;
  const Rendezvous complete = group;
  group = warp.pending[--warp.pending_count];

  Thread* lanes = &threads_[warp_number * warp_size];
  void* brought[warp_size] = {};
  for (unsigned left = complete.arrived; left; left &= left - 1) {
    Thread& lane = lanes[__builtin_ctz(left)];
    brought[lane.lane()] = lane.brought;
    wake(lane);
  }
  if (complete.collective->combine) complete.collective->combine(brought, complete.arrived);
  if (complete.collective->orders_memory) {
    order_memory(cell_of(warp_number, complete.mask), [&](const Thread& thread) {
      return thread.warp() == warp_number && (complete.arrived >> thread.lane() & 1);
    });
  }
  return true;
}

// Lanes that meet with one mask again have all been ordered by that mask's cell before, so they can use
// it again; another mask needs its own. Masks beyond the table share the last cell, which orders too much
// but reports nothing that is not there. (No container that grows: memory that one CUDA thread allocates
// and another frees would look like a race.)
void* Block::cell_of(unsigned warp_number, unsigned mask) {
  constexpr unsigned table = sizeof(Warp::ordering) / sizeof(unsigned), cells_of_block = 8;
  Warp& warp = warps_[warp_number];
  unsigned place = 0;
  while (place < warp.ordering_count && warp.ordering[place] != mask) ++place;
  if (place == warp.ordering_count && place < table) warp.ordering[warp.ordering_count++] = mask;
  if (place == table) --place;
  return shared_memory_.cell(cells_of_block + warp_number * table + place);
}

void Block::leave_warp(const Thread& thread) {
  Warp& warp = warps_[thread.warp()];
  warp.present &= ~(1u << thread.lane());
  warp.left |= 1u << thread.lane();
  for (unsigned i = 0; i < warp.pending_count;) {
    check_lanes_present(thread.warp(), warp.pending[i]);
    if (!complete_if_all_arrived(thread.warp(), warp.pending[i])) ++i;
  }
}

std::string Block::missing_lanes(const Thread& thread) const {
  const Warp& warp = warps_[thread.warp()];
  for (unsigned i = 0; i < warp.pending_count; ++i) {
    const Rendezvous& pending = warp.pending[i];
    const unsigned missing = pending.mask & warp.present & ~pending.arrived;
    if (pending.collective == thread.collective && pending.mask == thread.mask && missing)
      return ", waits for lanes " + lane_ranges(missing) + " of warp " + std::to_string(thread.warp());
  }
  return "";
}

// ---- the collectives ------------------------------------------------------------------------------

namespace {

constexpr Collective syncwarp = {"__syncwarp", false, true, nullptr};

struct ShuffleLane {
  unsigned long long value;
  unsigned source;
  unsigned long long result;
};

void combine_shuffle(void* const brought[warp_size], unsigned lanes) {
  for (unsigned left = lanes; left; left &= left - 1) {
    const unsigned lane = __builtin_ctz(left);
    ShuffleLane& own = *static_cast<ShuffleLane*>(brought[lane]);
    if (own.source >= warp_size || !(lanes >> own.source & 1)) {
      fail("warp", "in a shuffle with mask " + hexadecimal(lanes) + " lane " + std::to_string(lane) +
                       " reads from lane " + std::to_string(own.source) + ", which takes no part");
    }
    own.result = static_cast<ShuffleLane*>(brought[own.source])->value;
  }
}

constexpr Collective shuffles[] = {
    {"__shfl_sync", true, false, combine_shuffle},
    {"__shfl_up_sync", true, false, combine_shuffle},
    {"__shfl_down_sync", true, false, combine_shuffle},
    {"__shfl_xor_sync", true, false, combine_shuffle},
};

struct VoteLane {
  bool value;
  VoteResult result;
};

void combine_vote(void* const brought[warp_size], unsigned lanes) {
  VoteResult result = {0, lanes};
  for (unsigned left = lanes; left; left &= left - 1) {
    const unsigned lane = __builtin_ctz(left);
    result.yes |= unsigned{static_cast<VoteLane*>(brought[lane])->value} << lane;
  }
  for (unsigned left = lanes; left; left &= left - 1)
    static_cast<VoteLane*>(brought[__builtin_ctz(left)])->result = result;
}

constexpr Collective votes[] = {
    {"__ballot_sync", false, false, combine_vote},
    {"__any_sync", false, false, combine_vote},
    {"__all_sync", false, false, combine_vote},
};

}  // namespace

void warp_barrier(unsigned mask, Place place) {
  Thread& thread = running_thread();
  thread.owner->meet(thread, syncwarp, mask, place, nullptr);
}

unsigned long long shuffle(Shuffle instruction, unsigned mask, unsigned long long value, unsigned source, Place place) {
  Thread& thread = running_thread();
  ShuffleLane lane = {value, source, 0};
  thread.owner->meet(thread, shuffles[static_cast<int>(instruction)], mask, place, &lane);
  return lane.result;
}

VoteResult vote(Vote instruction, unsigned mask, bool value, Place place) {
  Thread& thread = running_thread();
  VoteLane lane = {value, {}};
  thread.owner->meet(thread, votes[static_cast<int>(instruction)], mask, place, &lane);
  return lane.result;
}

unsigned lane_index() { return running_thread().lane(); }

}  // namespace tconv_emulator
