// What the CUDA surface (tconv_emulator.h) needs from the engine. Kernels are compiled against this
// header alone, so it includes nothing; the .cpp files beside it are compiled once and kept.
#pragma once

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

namespace tconv_emulator {

// A source line, taken where a function with a `Place place = Place::here()` parameter is called.
struct Place {
  const char* file;
  int line;

  static constexpr Place here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
};

// ---- where a CUDA thread is ---------------------------------------------------------------------

struct BlockContext {
  uint3 index;
  dim3 block_size;
  dim3 grid_size;
  unsigned char* shared;  // dynamic shared memory, aligned to 1024 bytes
  bool late_copies;
};

struct ThreadContext {
  uint3 index;
  const BlockContext* block;
};

extern __thread const ThreadContext* current;  // of the CUDA thread that is running on this OS thread

inline unsigned char* shared_memory() { return current->block->shared; }

// ---- meeting other threads ----------------------------------------------------------------------

// The threads of a block meet; orders their memory.
void block_barrier(Place place);

// The lanes of `mask` meet; orders their memory.
void warp_barrier(unsigned mask, Place place);

// The lanes of `mask` exchange values; orders no memory. `instruction` keeps different shuffles apart.
enum class Shuffle { indexed, up, down, exclusive_or };
unsigned long long shuffle(Shuffle instruction, unsigned mask, unsigned long long value, unsigned source, Place place);

// The lanes of `mask` tell each other a truth value; orders no memory. Lanes that left are not voters.
enum class Vote { ballot, any, all };
struct VoteResult {
  unsigned yes, voters;
};
VoteResult vote(Vote instruction, unsigned mask, bool value, Place place);

unsigned lane_index();

// The lanes of a full warp show each other the address of a row of 16 bytes, as ldmatrix.x4 and stmatrix.x4 want it:
// matrix m has the rows that lanes 8m to 8m+7 name. A lane gets of each matrix the row of the number that it asks for.
enum class MatrixAccess { load, store };
void matrix_rows(MatrixAccess access, void* own, unsigned row, void* (&rows)[4], Place place);

// The lanes of a full warp multiply: PTX mma.sync. `accumulators` are four floats, or four doubles of doubles'
// products. Of TF32 operands the low 13 bits are dropped, as the hardware does. Products are added one after another;
// the hardware's order and rounding are others.
enum class MatrixProduct { m16n8k8_tf32, m16n8k16_f16, m16n8k16_bf16, m16n8k4_f64 };
void multiply_matrices(MatrixProduct product, void* accumulators, const unsigned (&a)[4], const unsigned (&b)[2],
                       Place place);

// The lanes of a full warp multiply their part of a warpgroup's product: PTX wgmma. A lane brings the words of the rows
// of B whose numbers are its own and so many further on: eight of each, `rows` / 32 rows or one, none from `rows` on.
enum class WarpgroupProduct { k8_tf32, k16_f16, k16_bf16 };
void multiply_rows(WarpgroupProduct product, float* accumulators, const unsigned (&a)[4], const unsigned (*b)[8],
                   int rows, Place place);

// So many threads of a block meet at one of 16 barriers: PTX bar.sync. Orders their memory.
void meet_threads(int number, int count, Place place);

// ---- barriers in shared memory, and what happens in the background ------------------------------

// PTX mbarrier; waiting and arriving order memory.
void make_barrier(void* barrier, int arrivals, Place place);
void arrive_at_barrier(void* barrier, Place place);
void expect_at_barrier(void* barrier, int bytes, Place place);
void wait_at_barrier(void* barrier, unsigned parity, Place place);

// What the running thread asked for and what happens without it, in the order of its asking: a copy, after which the
// barrier hears of its bytes, or an arrival. It happens at once; or, where copies are late, when no thread can go on.
struct Job {
  void (*copy)(void* to, const void* from, int bytes);  // may be nullptr
  void* to;
  const void* from;
  int bytes;
  void* barrier;  // may be nullptr
  bool arrives;
};
void in_background(const Job& job, Place place);

// Whether what is asynchronous happens when it is waited for, instead of at once.
inline bool copies_are_late() { return current->block->late_copies; }

// Ends the program: a kernel does what the emulator does not allow.
[[noreturn]] void refuse(const char* what, Place place);

// ---- kernels and their arguments ----------------------------------------------------------------

struct Argument {
  void* pointer;
  long long integer;  // or how many bytes the pointer points to
};

struct Parameter {
  enum class Kind { const_pointer, pointer, integer } kind;
  unsigned bytes;
};

struct Kernel {
  const char* name;
  unsigned parameter_count;
  const Parameter* parameters;
  void (*call)(const Argument* arguments);
};

// The kernels of a program; the generated end of the translation unit defines them.
extern const Kernel kernels[];
extern const unsigned kernel_count;

template <class T>
struct parameter_of {
  static_assert(static_cast<T>(3) / 2 == 1, "the emulator passes pointers and integers to kernels");
  static constexpr Parameter value = {Parameter::Kind::integer, sizeof(T)};
  static T from(const Argument& argument) { return static_cast<T>(argument.integer); }
};

template <class T>
struct parameter_of<T*> {
  static constexpr Parameter value = {Parameter::Kind::pointer, sizeof(T*)};
  static T* from(const Argument& argument) { return static_cast<T*>(argument.pointer); }
};

template <class T>
struct parameter_of<const T*> {
  static constexpr Parameter value = {Parameter::Kind::const_pointer, sizeof(T*)};
  static const T* from(const Argument& argument) { return static_cast<const T*>(argument.pointer); }
};

template <auto kernel>
struct Adapter;

template <class... P, void (*kernel)(P...)>
struct Adapter<kernel> {
  static constexpr Parameter parameters[sizeof...(P) + 1] = {parameter_of<P>::value...};

  static void call(const Argument* argument) {
    // The braces of an initializer list fix the order of evaluation: argument by argument.
    Call{parameter_of<P>::from(*argument++)...};
  }

  static constexpr Kernel entry(const char* name) { return {name, sizeof...(P), parameters, call}; }

 private:
  struct Call {
    explicit Call(P... values) { kernel(values...); }
  };
};

}  // namespace tconv_emulator
