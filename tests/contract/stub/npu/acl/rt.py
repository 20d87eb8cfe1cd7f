"""``acl.rt`` as far as vllm-ascend imports it."""


def memcpy(*args: object) -> int:
    """Refused: an engine that sleeps needs a device.

    Raises:
        NotImplementedError: Always.
    """
    raise NotImplementedError("the stub of the device has no acl.rt.memcpy")
