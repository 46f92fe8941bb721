// What AddressSanitizer and ThreadSanitizer must be told about fibers and shared memory.
//
// The engine itself is compiled without sanitizers, in every mode: only kernels are watched. So the
// mode comes as a macro of our own, and everything here does nothing in the other modes.
#pragma once

#include <cstddef>

#ifdef TCONV_EMULATOR_ADDRESS
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#ifdef TCONV_EMULATOR_THREAD
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_set_fiber_name(void* fiber, const char* name);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void __sanitizer_set_death_callback(void (*callback)());
}
#endif

namespace tconv_emulator::address {

struct Stack {
  const void* bottom = nullptr;
  size_t bytes = 0;
};

#ifdef TCONV_EMULATOR_ADDRESS
inline void before_switch(void** fake_stack, Stack to) {
  __sanitizer_start_switch_fiber(fake_stack, to.bottom, to.bytes);
}
inline void after_switch(void* fake_stack, Stack* from) {
  __sanitizer_finish_switch_fiber(fake_stack, from ? &from->bottom : nullptr, from ? &from->bytes : nullptr);
}
inline void poison(const void* start, size_t bytes) { __asan_poison_memory_region(start, bytes); }
inline void unpoison(const void* start, size_t bytes) { __asan_unpoison_memory_region(start, bytes); }
inline const void* faulty_address() { return __asan_report_present() ? __asan_get_report_address() : nullptr; }
#else
inline void before_switch(void**, Stack) {}
inline void after_switch(void*, Stack*) {}
inline void poison(const void*, size_t) {}
inline void unpoison(const void*, size_t) {}
inline const void* faulty_address() { return nullptr; }
#endif

}  // namespace tconv_emulator::address

// ThreadSanitizer keeps a clock per context; two accesses race when no release and acquire of one cell
// orders them. A cell is only an address: it is never read or written.
namespace tconv_emulator::race {

#ifdef TCONV_EMULATOR_THREAD
constexpr bool watched = true;
constexpr unsigned no_order = 1;  // a switch orders nothing; with flag 0 every switch would hide races
inline void* current_context() { return __tsan_get_current_fiber(); }
inline void* create_context() { return __tsan_create_fiber(0); }
inline void destroy_context(void* context) { __tsan_destroy_fiber(context); }
inline void enter_context(void* context) { __tsan_switch_to_fiber(context, no_order); }
inline void name_context(void* context, const char* name) { __tsan_set_fiber_name(context, name); }
inline void acquire(void* cell) { __tsan_acquire(cell); }
inline void release(void* cell) { __tsan_release(cell); }
#else
constexpr bool watched = false;
inline void* current_context() { return nullptr; }
inline void* create_context() { return nullptr; }
inline void destroy_context(void*) {}
inline void enter_context(void*) {}
inline void name_context(void*, const char*) {}
inline void acquire(void*) {}
inline void release(void*) {}
#endif

}  // namespace tconv_emulator::race

namespace tconv_emulator {

inline void on_sanitizer_error(void (*callback)()) {
#if defined(TCONV_EMULATOR_ADDRESS) || defined(TCONV_EMULATOR_THREAD)
  __sanitizer_set_death_callback(callback);
#else
  (void)callback;
#endif
}

}  // namespace tconv_emulator
