;; The least that a filter can be which hears of a request's begin and of its end: what it costs is what the host asks for
;; calling anybody.
(module
  (memory (export "memory") 1)
  (func (export "proxy_abi_version_0_2_1"))
  (func (export "proxy_on_memory_allocate") (param $size i32) (result i32) (i32.const 0))
  (func (export "proxy_on_request_headers") (param $context i32) (param $count i32) (param $end i32) (result i32) (i32.const 0))
  (func (export "proxy_on_delete") (param $context i32)))
