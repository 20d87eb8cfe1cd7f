"""What Qwen's multimodal models share: their language model is a module inside, and their config an object inside.

xlite runs the language model. The vision part stays vLLM's own, and hands over embeddings and deepstack features.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arch_registry.architectures import dense
from arch_registry.fields import Flag
from arch_registry.findings import FindingCode
from arch_registry.refusals import Off, Unquantized
from arch_registry.runtime_fields import Set
from arch_registry.spec import Inert
from arch_registry.vision_fields import Deepstack

MODULE = "language_model"
DECODER = f"{MODULE}.{dense.DECODER}"
LAYER_NAME = f"{MODULE}.{dense.LAYER_NAME}"
ROPE_TABLE = f"{MODULE}.{dense.ROPE_TABLE}"

RUNTIME = (
    Set("mrope_section", "mrope_section"),
    Set("mrope_interleaved", "mrope_interleaved"),
    Set("deepstack_num_level", "deepstack_num_level"),
)

# Of the outer object.
SECTION = "text_config"
FIELDS = (
    # vLLM ties the head of the language model by this, whatever the inner object says, whose class may differ.
    Flag("tie_word_embeddings", default=False),
    Deepstack(default=3),
)
OUTER_INERT = (
    *dense.INERT,
    Inert(
        "ids of the tokens that stand for images and videos: vLLM replaces their embeddings before the decoder runs",
        ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"),
    ),
    Inert("vLLM reads it here for the norms of the vision part", ("rms_norm_eps",)),
)
OUTER_REFUSALS = (
    Off(("is_encoder_decoder",), FindingCode.ATTENTION_MASK, f"Only decoders are served. {dense.NATIVELY}"),
    Unquantized(),
)
# A text config by itself is that of a language model to which no image adds anything.
ALONE: Mapping[str, Any] = {"vision_config": {"deepstack_visual_indexes": []}}

# Of the inner one.
INERT = (Inert("vLLM goes by the outer object", ("architectures", "tie_word_embeddings")),)
