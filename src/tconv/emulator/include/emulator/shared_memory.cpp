#include "shared_memory.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "sanitizers.h"

namespace tconv_emulator {

namespace {

constexpr size_t page = 4096;

size_t whole_pages(size_t bytes) { return (bytes + page - 1) / page * page; }

}  // namespace

SharedMemory::SharedMemory(size_t bytes) : bytes_(bytes) { map(); }

SharedMemory::~SharedMemory() { unmap(); }

unsigned char* SharedMemory::renew() {
  // ThreadSanitizer forgets what it saw of a page when the page goes: blocks do not share this memory.
  if (race::watched) {
    unmap();
    map();
  }
  unsigned char* start = mapping_ + red_zone;
  memset(start, 0xff, bytes_);
  return start;
}

bool SharedMemory::contains(const void* address, long* offset) const {
  const unsigned char* byte = static_cast<const unsigned char*>(address);
  *offset = byte - (mapping_ + red_zone);
  return byte >= mapping_ && byte < mapping_ + mapped_bytes();
}

size_t SharedMemory::mapped_bytes() const { return red_zone + whole_pages(bytes_) + red_zone; }

void SharedMemory::map() {
  void* mapping = mmap(nullptr, mapped_bytes(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED ||
      mprotect(static_cast<unsigned char*>(mapping) + red_zone, whole_pages(bytes_), PROT_READ | PROT_WRITE) != 0) {
    perror("tconv emulator: crash: no memory for the shared memory of a block");
    abort();
  }
  mapping_ = static_cast<unsigned char*>(mapping);
  address::poison(mapping_, red_zone);
  address::poison(mapping_ + red_zone + bytes_, whole_pages(bytes_) - bytes_ + red_zone);
}

void SharedMemory::unmap() {
  address::unpoison(mapping_, mapped_bytes());
  munmap(mapping_, mapped_bytes());
}

}  // namespace tconv_emulator
