"""From a kernel to a launch: generated source, NVRTC, the cache on disk, loading, launching."""
