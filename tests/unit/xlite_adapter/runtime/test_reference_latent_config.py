"""What Model.init refuses in a ModelConfig with latent attention; every message names the attribute."""

import pytest
from latent_models import initialise, refused
from reference_models import hf_model, make_config, make_model

LATENT_FIELDS = ["nope_head_dim", "v_head_dim", "q_lora_rank", "kv_lora_rank"]
INDEX_FIELDS = {
    "index_head_dim": 32,
    "index_n_heads": 8,
    "index_topk": 12,
    "index_softmax_scale": 0.1,
    "index_rope_interleaved": True,
    "index_full_mask": [True, False, True, False],
}


@pytest.mark.parametrize("name", LATENT_FIELDS)
def test_fields_of_latent_attention_in_a_multi_head_model(name):
    hf = hf_model("llama")
    with pytest.raises(ValueError, match=f"ModelConfig.{name} is 7: attn_type AttnMHA has no use for it"):
        make_model(hf).init(make_config(hf, **{name: 7}))


@pytest.mark.parametrize("name", INDEX_FIELDS)
def test_fields_of_the_indexer_in_a_dense_model(name):
    refused(f"ModelConfig.{name} is .*: attn_type AttnMLA has no use for it", "mla", fields={name: INDEX_FIELDS[name]})


@pytest.mark.parametrize("value", [0, -1])
@pytest.mark.parametrize("name", [*LATENT_FIELDS, "rope_head_dim", "softmax_scale", *list(INDEX_FIELDS)[:3]])
def test_sizes_above_zero(name, value):
    refused(rf"ModelConfig.{name} is {value}(\.0)?: .*expected more than 0", fields={name: value})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"q_lora_rank": 0}, "q_lora_rank is 0: the runtime has slots for compressed queries only"),
        ({"rope_head_dim": 15}, "rope_head_dim is 15: expected an even number"),
        ({"n_kv_heads": 4}, "n_kv_heads is 4: all heads share one latent, so the cache has 1"),
        ({"head_dim": 32}, r"head_dim is 32: expected 0 or nope_head_dim \+ rope_head_dim = 40"),
        ({"qk_norm": True}, "qk_norm is True: attn_type AttnDSA has no use for it"),
        ({"qkv_bias": True}, "qkv_bias is True: attn_type AttnDSA has no use for it"),
        ({"mrope_section": [2, 3, 3]}, "mrope_section is .*: attn_type AttnDSA has no use for it"),
        ({"def_tp_size": 3, "moe_ep_size": 1, "moe_tp_size": 3}, "n_heads is 4: expected a multiple of def_tp_size 3"),
        ({"index_rope_interleaved": False}, r"index_rope_interleaved is False: .* rotates pairs \(2j, 2j \+ 1\) only"),
        ({"index_head_dim": 8}, "index_head_dim is 8: expected at least rope_head_dim 16"),
        ({"index_topk": 2049}, "index_topk is 2049: the runtime chooses at most 2048 tokens"),
        ({"index_softmax_scale": -1.0}, "index_softmax_scale is -1.0: expected 0 or more"),
        ({"index_full_mask": [True]}, r"index_full_mask is \(True,\): expected one entry per layer, n_layers 4"),
        ({"index_full_mask": [True] * 5}, "index_full_mask is .*: expected one entry per layer, n_layers 4"),
        (
            {"index_full_mask": [False, True, True, True]},
            "index_full_mask is .*: the first layer has no earlier choice",
        ),
        ({"index_c8_mask": [True] * 4}, "index_c8_mask is .*: xlite-adapter does not implement an index cache"),
        ({"block_size": 256}, "block_sizes is 256: the runtime's indexer reads blocks of at most 128 tokens"),
        ({"mla_wuv_weight_nz": True}, "mla_wuv_weight_nz is True: xlite-adapter does not implement NZ"),
        ({"mla_wukt_weight_nz": True}, "mla_wukt_weight_nz is True: xlite-adapter does not implement NZ"),
    ],
)
def test_config_values(fields, message):
    refused(f"ModelConfig.{message}", fields={"max_seq_len": 512, **fields})


def test_accepted_values():
    initialise("mla", fields={"head_dim": 40, "block_size": 256})
    initialise("dsa", fields={"index_full_mask": [True] * 4})
    initialise("dsa", fields={"block_size": 0, "block_sizes": [128]})
