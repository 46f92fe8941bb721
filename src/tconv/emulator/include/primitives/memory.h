// What `kernels/primitives/memory.cuh` does by PTX, on the CPU.
#pragma once

namespace tconv_emulator::primitives {

template <class T>
inline T kept(T value) {
  return value;
}

inline int renewed(int value) { return value; }

template <int Bytes>
inline void load_present(const void* address, bool present, unsigned (&words)[(Bytes + 3) / 4]) {
  struct alignas(Bytes) Aligned {
    unsigned char bytes[Bytes];
  };
  for (unsigned& word : words) word = 0;
  if (!present) return;
  const Aligned bytes = *static_cast<const Aligned*>(address);
  __builtin_memcpy(&words, &bytes, Bytes);
}

template <int Bytes>
inline void store_words(void* address, const unsigned (&words)[(Bytes + 3) / 4]) {
  struct alignas(Bytes) Aligned {
    unsigned char bytes[Bytes];
  };
  Aligned bytes;
  __builtin_memcpy(&bytes, &words, Bytes);
  *static_cast<Aligned*>(address) = bytes;
}

template <class Element>
inline void store_present(Element* address, Element value, bool present) {
  if (present) *address = value;
}

}  // namespace tconv_emulator::primitives
