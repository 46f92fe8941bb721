// `kernels/primitives/language.cuh` on the CPU.
#pragma once

#define TCONV_DEVICE inline
#define TCONV_MAY_ALIAS [[gnu::may_alias]]
#define TCONV_SHARED(name) unsigned char* name = tconv_emulator::shared_memory()
