"""In place of CANN's Python bindings, of which vllm-ascend's allocator for sleeping engines imports one function."""
