// Ends the program with one line that says what is wrong, and where.
#pragma once

#include <string>

#include "block.h"

namespace tconv_emulator {

constexpr int exit_error = 70;

// kind: what the Python side makes of it ("deadlock", "divergence", "warp", "crash").
[[noreturn]] void fail(const char* kind, const std::string& message);

std::string text(Place place);                               // "direct.cuh:120"
std::string hexadecimal(unsigned mask);                      // "0x0000ffff"
std::string ranges(const std::vector<unsigned>& ascending);  // "0-31, 64"
std::string lane_ranges(unsigned mask);                      // the same for a mask's lanes

// Makes signals and the sanitizers' reports name the kernel, block and thread.
void report_crashes();

}  // namespace tconv_emulator
