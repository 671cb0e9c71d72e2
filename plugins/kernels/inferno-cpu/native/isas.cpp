// The kernels of each level, and which of them run.
#include <atomic>
#include <stdexcept>

#include "kernels.hpp"
#include "levels.hpp"

// The tables that CMakeLists.txt has compiled.
#define DECLARE(level)                          \
  extern const Elementwise elementwise_##level; \
  extern const DenseLinear dense_##level;       \
  extern const PackedLinear packed_##level;     \
  extern const Attention attention_##level;     \
  extern const Experts experts_##level;         \
  extern const Adapters adapters_##level;       \
  extern const Quantizer quantize_##level;
DECLARE(portable)
DECLARE(sse42)
DECLARE(avx2)
DECLARE(avxvnni)
DECLARE(avx512vnni)
DECLARE(avx512)
DECLARE(amx)
DECLARE(neon)
DECLARE(dotprod)
DECLARE(i8mm)
DECLARE(sve256)

namespace {

// The kernels that each level takes. Another level's, where its own instructions would change
// nothing: AVX-VNNI only multiplies bytes, AMX only multiplies matrices, and BF16 only floats.
#define TAKES(name, elementwise, dense, packed, attention, experts, quantize)                   \
  Isa {                                                                                         \
    name, &elementwise_##elementwise, &dense_##dense, &packed_##packed, &attention_##attention, \
        &experts_##experts, &adapters_##experts, &quantize_##quantize                           \
  }
// clang-format off
const Isa kIsas[] = {
    //      level         elementwise dense       packed      attention   experts     quantize
#if defined(INFERNO_HAS_AMX)
    TAKES("amx",         avx512,     amx,        amx,        avx512vnni, avx512vnni, avx512vnni),
#endif
#if defined(INFERNO_HAS_AVX512)
    TAKES("avx512",      avx512,     avx512,     avx512vnni, avx512,     avx512vnni, avx512vnni),
#endif
#if defined(INFERNO_HAS_AVX512VNNI)
    TAKES("avx512vnni",  avx512vnni, avx512vnni, avx512vnni, avx512vnni, avx512vnni, avx512vnni),
#endif
#if defined(INFERNO_HAS_AVXVNNI)
    TAKES("avxvnni",     avx2,       avx2,       avxvnni,    avx2,       avx2,       avx2),
#endif
#if defined(INFERNO_HAS_AVX2)
    TAKES("avx2",        avx2,       avx2,       avx2,       avx2,       avx2,       avx2),
#endif
#if defined(INFERNO_HAS_SSE42)
    TAKES("sse4.2",      sse42,      sse42,      sse42,      sse42,      sse42,      sse42),
#endif
#if defined(INFERNO_HAS_SVE256)
    TAKES("sve256",      sve256,     sve256,     sve256,     sve256,     sve256,     sve256),
#endif
#if defined(INFERNO_HAS_I8MM)
    TAKES("i8mm",        i8mm,       i8mm,       i8mm,       i8mm,       neon,       neon),
#endif
#if defined(INFERNO_HAS_DOTPROD)
    TAKES("dotprod",     neon,       neon,       dotprod,    neon,       neon,       neon),
#endif
#if defined(INFERNO_HAS_NEON)
    TAKES("neon",        neon,       neon,       neon,       neon,       neon,       neon),
#endif
    TAKES("portable",    portable,   portable,   portable,   portable,   portable,   portable),
};
// clang-format on

std::atomic<const Isa*> chosen{nullptr};

}  // namespace

const Isa& isa_of(const std::string& level) {
  for (const std::string& name : available_levels())
    if (name == level)
      for (const Isa& isa : kIsas)
        if (name == isa.name) return isa;
  throw std::invalid_argument("this machine cannot run " + level);
}

void select_level(const std::string& level) { chosen = &isa_of(level); }

const Isa& active() {
  const Isa* isa = chosen.load(std::memory_order_relaxed);
  if (!isa) chosen.store(isa = &isa_of(wanted_level()), std::memory_order_relaxed);
  return *isa;
}
