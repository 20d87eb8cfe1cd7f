"""In place of a package of device kernels that vllm-ascend 0.30 imports with its layers; our models need none."""
