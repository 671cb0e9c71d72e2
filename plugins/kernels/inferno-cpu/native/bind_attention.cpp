#include "bind.hpp"
#include "kernels.hpp"

void bind_attention(nb::module_& m) {
  m.def("attend",
        [](int dtype, int cache_kind, Address q, int64_t q_stride, Address k, int64_t k_stride,
           Address v, int64_t v_stride, Address out, Address k_cache, Address v_cache,
           Address k_scales, Address v_scales, Address slots, Address query_starts,
           Address context_lens, Address tables, int64_t table_stride, int64_t S, int H, int K,
           int C, int block_size, float scale, float soft_cap, int64_t window, Address amplitudes,
           Address used, Address lines, int64_t line_stride, int num_waves) {
          AttentionStep step{dtype,
                             cache_kind,
                             at(q),
                             at(k),
                             at(v),
                             q_stride,
                             k_stride,
                             v_stride,
                             at(out),
                             at(k_cache),
                             at(v_cache),
                             at<float>(k_scales),
                             at<float>(v_scales),
                             at<int64_t>(slots),
                             at<int32_t>(query_starts),
                             at<int32_t>(context_lens),
                             at<int64_t>(tables),
                             table_stride,
                             S,
                             H,
                             K,
                             C,
                             block_size,
                             scale,
                             soft_cap,
                             window,
                             {at<float>(amplitudes), at<int32_t>(used), at<float>(lines),
                              line_stride, num_waves}};
          run([=] { active().attention->attend(step); });
        });
  m.def("attend_whole", [](int dtype, Address q, int64_t q_stride, Address k, int64_t k_stride,
                           Address v, int64_t v_stride, Address out, Address query_starts,
                           int64_t S, int H, int K, int C, float scale, int64_t window) {
    WholeStep step{};
    step.dtype = dtype;
    step.q = at(q), step.q_stride = q_stride;
    step.k = at(k), step.k_stride = k_stride;
    step.v = at(v), step.v_stride = v_stride;
    step.out = at(out);
    step.query_starts = at<int32_t>(query_starts), step.S = S;
    step.H = H, step.K = K, step.C = C;
    step.scale = scale, step.window = window;
    run([=] { active().attention->attend_whole(step); });
  });
}
