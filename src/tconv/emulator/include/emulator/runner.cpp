// The program that a kernel becomes: it reads a request, runs its launches one after another, and writes
// the buffers that kernels may have changed. `program DIRECTORY` reads DIRECTORY/request and the buffers
// DIRECTORY/0, DIRECTORY/1, ..., so that a run can be repeated by hand, in a debugger say. A mapped buffer is not read
// and written but is its file: of a sparse one only the pages that kernels touch cost memory.
//
//   order (ascending, descending, random)  seed  OS threads  when asynchronous copies land (eager, late)
//   number of buffers, and for each: copied or mapped  bytes  distance of its start from a multiple of 256
//   number of launches, and for each: kernel  grid  block  shared bytes  first block  blocks  step
//     number of arguments, and for each: p BUFFER, i INTEGER or n (nullptr)

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "block.h"
#include "report.h"

// Read by the sanitizers' runtimes before main starts.
extern "C" const char* __asan_default_options() { return "detect_leaks=0"; }
extern "C" const char* __tsan_default_options() { return "halt_on_error=1:history_size=4"; }

namespace tconv_emulator {

namespace {

[[noreturn]] void refuse(const std::string& message) { fail("request", message); }

// Device memory: exactly as long as the tensor, so that the byte behind it is not ours, and aligned as
// the tensor would be on a GPU, where an allocation starts at a multiple of 256.
class Buffer {
 public:
  Buffer(std::string path, bool mapped, size_t bytes, size_t misalignment)
      : path_(std::move(path)), mapped_(mapped), bytes_(bytes) {
    mapped_ ? map() : read(misalignment);
  }

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  void mark_changed() { changed_ = true; }

  void write_if_changed() const {
    if (!changed_ || mapped_) return;
    FILE* file = fopen(path_.c_str(), "wb");
    if (!file || fwrite(data_, 1, bytes_, file) != bytes_ || fclose(file) != 0) refuse("cannot write " + path_);
  }

 private:
  void read(size_t misalignment) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 256, misalignment + bytes_) != 0) refuse("no memory for a buffer");
    address::poison(memory, misalignment);
    data_ = static_cast<char*>(memory) + misalignment;
    FILE* file = fopen(path_.c_str(), "rb");
    if (!file || fread(data_, 1, bytes_, file) != bytes_) refuse("cannot read " + path_);
    fclose(file);
  }

  // The file's pages between two that nobody may touch.
  void map() {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), whole = (bytes_ + page - 1) / page * page;
    void* around = mmap(nullptr, whole + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (around == MAP_FAILED) refuse("no addresses for a mapped buffer");
    data_ = static_cast<char*>(around) + page;
    const int file = open(path_.c_str(), O_RDWR);
    if (file < 0 || mmap(data_, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED)
      refuse("cannot map " + path_);
    close(file);
    madvise(data_, bytes_, MADV_RANDOM);  // reading ahead in a sparse file makes pages that nobody needs
    address::poison(data_ - page, page);
    address::poison(data_ + bytes_, whole - bytes_ + page);
  }

  std::string path_;
  bool mapped_;
  size_t bytes_;
  char* data_;
  bool changed_ = false;
};

class Request {
 public:
  explicit Request(std::string directory) : directory_(std::move(directory)) {
    file_ = fopen((directory_ + "/request").c_str(), "r");
    if (!file_) refuse("cannot read " + directory_ + "/request");
    const std::string order = word();
    order_ = order == "ascending" ? Order::ascending : order == "descending" ? Order::descending : Order::random;
    seed_ = integer();
    os_threads = static_cast<unsigned>(integer());
    late_copies_ = word() == "late";
    const long long buffer_count = integer();
    for (long long number = 0; number < buffer_count; ++number) {
      const bool mapped = word() == "mapped";
      const size_t bytes = integer(), misalignment = integer();
      buffers.emplace_back(directory_ + "/" + std::to_string(number), mapped, bytes, misalignment);
    }
    launch_count = integer();
  }

  Launch next_launch() {
    Launch launch{};
    launch.kernel = find_kernel(word());
    launch.order = order_;
    launch.seed = seed_;
    launch.late_copies = late_copies_;
    for (unsigned* field : {&launch.grid_size, &launch.block_size, &launch.shared_bytes, &launch.first_block,
                            &launch.block_count, &launch.block_step})
      *field = static_cast<unsigned>(integer());
    const unsigned count = static_cast<unsigned>(integer());
    if (count != launch.kernel->parameter_count) {
      refuse(std::string("kernel ") + launch.kernel->name + " takes " + std::to_string(launch.kernel->parameter_count) +
             " arguments, got " + std::to_string(count));
    }
    for (unsigned number = 0; number < count; ++number) launch.arguments.push_back(argument(*launch.kernel, number));
    return launch;
  }

  unsigned os_threads;
  long long launch_count;
  std::vector<Buffer> buffers;

 private:
  std::string word() {
    char text[256];
    if (fscanf(file_, "%255s", text) != 1) refuse("the request ends early");
    return text;
  }

  long long integer() { return atoll(word().c_str()); }

  static const Kernel* find_kernel(const std::string& name) {
    for (unsigned i = 0; i < kernel_count; ++i)
      if (name == kernels[i].name) return &kernels[i];
    refuse("the program has no kernel " + name);
  }

  Argument argument(const Kernel& kernel, unsigned number) {
    const Parameter& parameter = kernel.parameters[number];
    const std::string name = std::string("argument ") + std::to_string(number) + " of kernel " + kernel.name;
    const std::string kind = word();
    if ((kind == "i") != (parameter.kind == Parameter::Kind::integer)) {
      refuse(name + " is " +
             (kind == "i" ? "an integer where the kernel takes a pointer"
                          : "a pointer where the kernel takes an integer"));
    }
    if (kind == "n") return {nullptr, 0};
    const long long value = integer();
    if (kind == "p") {
      if (parameter.kind == Parameter::Kind::pointer) buffers[value].mark_changed();
      return {buffers[value].data(), static_cast<long long>(buffers[value].bytes())};
    }
    const unsigned unused_bits = 64 - 8 * parameter.bytes;
    if (value << unused_bits >> unused_bits != value)
      refuse(name + ", " + std::to_string(value) + ", does not fit its " + std::to_string(parameter.bytes) + " bytes");
    return {nullptr, value};
  }

  std::string directory_;
  FILE* file_;
  Order order_;
  uint64_t seed_;
  bool late_copies_;
};

// Blocks go by the same order as threads, so that a block that relies on another one is found too.
unsigned nth_block(const Launch& launch, unsigned n) {
  unsigned place = n;
  if (launch.order == Order::descending) place = launch.block_count - 1 - n;
  if (launch.order == Order::random) {
    // A step that shares no factor with the count visits every block once.
    uint64_t step = launch.seed * 0x9e3779b97f4a7c15u % launch.block_count | 1;
    while (std::gcd<uint64_t>(step, launch.block_count) != 1) step += 2;
    place = static_cast<unsigned>((n * step + launch.seed) % launch.block_count);
  }
  return launch.first_block + place * launch.block_step;
}

void run(const Launch& launch, unsigned os_threads) {
  std::atomic<unsigned> next{0};
  auto work = [&] {
    report_crashes();
    Block block(launch);
    for (unsigned n; (n = next.fetch_add(1)) < launch.block_count;) block.run(nth_block(launch, n));
  };
  std::vector<std::thread> others;
  while (others.size() + 1 < os_threads && others.size() + 1 < launch.block_count) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
}

}  // namespace

}  // namespace tconv_emulator

int main(int argument_count, char** arguments) {
  using namespace tconv_emulator;
  if (argument_count != 2) refuse("usage: program DIRECTORY");
  Request request(arguments[1]);
  for (long long number = 0; number < request.launch_count; ++number) run(request.next_launch(), request.os_threads);
  for (const Buffer& buffer : request.buffers) buffer.write_if_changed();
}
