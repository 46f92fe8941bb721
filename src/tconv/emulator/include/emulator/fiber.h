// A stack of its own to run a CUDA thread on, entered and left in a few nanoseconds.
//
// resume() runs the fiber on the caller's OS thread until it suspends or finishes. The switch is a dozen
// instructions on x86-64; elsewhere, or with TCONV_EMULATOR_UCONTEXT, it is ucontext, which makes a
// system call a switch.
#pragma once

#include <cstddef>

#include "sanitizers.h"

#if !defined(__x86_64__) && !defined(TCONV_EMULATOR_UCONTEXT)
#define TCONV_EMULATOR_UCONTEXT
#endif

#ifdef TCONV_EMULATOR_UCONTEXT
#include <ucontext.h>
#endif

namespace tconv_emulator {

class Fiber {
 public:
  static constexpr size_t stack_bytes = 128 * 1024;

  explicit Fiber(unsigned number);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next resume() calls entry(argument) on an empty stack. entry must end with finish().
  void start(void (*entry)(void*), void* argument);
  void resume();

  // For the code that runs on the fiber.
  void suspend();
  [[noreturn]] void finish();

  bool overflowed_at(const void* address) const;
  void* race_context() const { return race_context_; }

 private:
#ifdef TCONV_EMULATOR_UCONTEXT
  using State = ucontext_t;
#else
  using State = void*;  // the stack pointer; the registers lie on the stack
#endif

  static void switch_stacks(State& save, State& to);
  static void first_entry();
  void leave(void** fake_stack);

  unsigned char* memory_;  // guard pages, then the stack
  unsigned number_;
  State state_{}, resumer_{};
  address::Stack resumer_stack_;
  void* race_context_;
  void* resumer_race_context_ = nullptr;
  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
};

}  // namespace tconv_emulator
