#include "fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace tconv_emulator {

namespace {

constexpr size_t guard_bytes = 64 * 1024;  // more than a large frame jumps over

// The fiber that is being entered for the first time: its entry has no parameter to get it by.
thread_local Fiber* entering = nullptr;

}  // namespace

Fiber::Fiber(unsigned number) : number_(number), race_context_(race::create_context()) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK;
  void* memory = mmap(nullptr, guard_bytes + stack_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, guard_bytes, PROT_NONE) != 0) {
    perror("tconv emulator: crash: no memory for a stack");
    abort();
  }
  memory_ = static_cast<unsigned char*>(memory);
}

Fiber::~Fiber() {
  race::destroy_context(race_context_);
  address::unpoison(memory_, guard_bytes + stack_bytes);
  munmap(memory_, guard_bytes + stack_bytes);
}

bool Fiber::overflowed_at(const void* address) const { return address >= memory_ && address < memory_ + guard_bytes; }

void Fiber::resume() {
  void* fake_stack = nullptr;
  entering = this;
  resumer_race_context_ = race::current_context();
  address::before_switch(&fake_stack, {memory_ + guard_bytes, stack_bytes});
  race::enter_context(race_context_);
  switch_stacks(resumer_, state_);
  address::after_switch(fake_stack, nullptr);
}

void Fiber::suspend() {
  void* fake_stack = nullptr;
  leave(&fake_stack);
  address::after_switch(fake_stack, &resumer_stack_);
}

void Fiber::finish() {
  leave(nullptr);  // nullptr: the fake stack is not needed again
  abort();
}

void Fiber::leave(void** fake_stack) {
  address::before_switch(fake_stack, resumer_stack_);
  race::enter_context(resumer_race_context_);
  switch_stacks(state_, resumer_);
}

void Fiber::first_entry() {
  Fiber& self = *entering;
  address::after_switch(nullptr, &self.resumer_stack_);
  self.entry_(self.argument_);
  abort();
}

#ifdef TCONV_EMULATOR_UCONTEXT

void Fiber::start(void (*entry)(void*), void* argument) {
  entry_ = entry;
  argument_ = argument;
  getcontext(&state_);
  state_.uc_stack.ss_sp = memory_ + guard_bytes;
  state_.uc_stack.ss_size = stack_bytes;
  state_.uc_link = nullptr;
  makecontext(&state_, first_entry, 0);
}

void Fiber::switch_stacks(State& save, State& to) { swapcontext(&save, &to); }

#else

// Saves what the System V ABI lets a function keep over a call, and goes on on the other stack. It jumps
// rather than returns: the processor predicts a return from the calls before it, here always wrongly.
asm(R"(
.text
.type tconv_emulator_switch_stacks, @function
tconv_emulator_switch_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmpq *%rcx
.size tconv_emulator_switch_stacks, . - tconv_emulator_switch_stacks
)");
extern "C" void tconv_emulator_switch_stacks(void** save, void* to);

void Fiber::start(void (*entry)(void*), void* argument) {
  entry_ = entry;
  argument_ = argument;
  // Stacks lie a multiple of the page size apart: shifted by a line each, their tops share no cache set.
  const size_t shift = number_ % 32 * 64;
  uint64_t* top = reinterpret_cast<uint64_t*>(memory_ + guard_bytes + stack_bytes - shift);
  // A function is entered with the stack 8 bytes off a multiple of 16, and unwinding ends at return address 0.
  *--top = 0;
  *--top = reinterpret_cast<uint64_t>(first_entry);
  for (int saved_register = 0; saved_register < 6; ++saved_register) *--top = 0;
  state_ = top;
}

void Fiber::switch_stacks(State& save, State& to) { tconv_emulator_switch_stacks(&save, to); }

#endif

}  // namespace tconv_emulator
