// The dynamic shared memory of one block between two red zones.
#pragma once

#include <cstddef>

namespace tconv_emulator {

class SharedMemory {
 public:
  explicit SharedMemory(size_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // For the next block: every byte 0xff, so that floating-point values nobody wrote are NaN.
  unsigned char* renew();

  size_t bytes() const { return bytes_; }

  // Where `address` lies, in bytes from the start, if it is in the shared memory or its red zones.
  bool contains(const void* address, long* offset) const;

  // A cell for ThreadSanitizer: an address in the front red zone, known to nobody else.
  void* cell(size_t number) const { return mapping_ + number % (red_zone / 8) * 8; }

 private:
  static constexpr size_t red_zone = 32 * 1024;

  void map();
  void unmap();
  size_t mapped_bytes() const;

  size_t bytes_;
  unsigned char* mapping_ = nullptr;
};

}  // namespace tconv_emulator
