"""What Model.init refuses in the slots of latent attention; every message names the slot."""

import pytest
import torch
from latent_models import initialise, latent_harness, refused
from reference_models import hf_model, make_config, make_model

from xlite_adapter.runtime import reference as xl

LATENT = ["mla_qkv_a", "mla_q_norm", "mla_q_b", "mla_kv_norm", "mla_wuk_t", "mla_wuv", "attn_out"]
INDEXER = ["index_q_b", "index_k_weights_proj", "index_k_norm", "index_k_norm_bias"]
MATRICES = ["mla_qkv_a", "mla_q_b", "mla_wuk_t", "mla_wuv", "attn_out", "index_q_b", "index_k_weights_proj"]


def edit(slot, change, layer=2):
    """Change one layer's weight; layer 2 of ``shared_dsa`` has an indexer of its own."""
    return lambda model: setattr(
        model, slot, [change(w) if i == layer else w for i, w in enumerate(getattr(model, slot))]
    )


@pytest.mark.parametrize("slot", [*LATENT, *INDEXER])
def test_shape(slot):
    refused(rf"Model.{slot}\[2\]: expected shape \(.*, got \(", mutate=edit(slot, lambda w: torch.cat([w, w])))


@pytest.mark.parametrize("slot", MATRICES)
def test_transposed(slot):
    refused(rf"Model.{slot}\[2\]: expected shape", mutate=edit(slot, lambda w: w.transpose(-1, -2).contiguous()))


@pytest.mark.parametrize("slot", MATRICES)
def test_not_contiguous(slot):
    change = edit(slot, lambda w: w.transpose(-1, -2).contiguous().transpose(-1, -2))
    refused(rf"Model.{slot}\[2\]: expected a contiguous tensor", mutate=change)


@pytest.mark.parametrize("slot", [*LATENT, *INDEXER])
def test_dtype(slot):
    norm = slot.startswith("index_k_norm")
    message = "expected dtype torch.float32" + ("" if norm else " as Model.embed has") + ", got torch.bfloat16"
    refused(rf"Model.{slot}\[2\]: {message}", mutate=edit(slot, torch.Tensor.bfloat16))


@pytest.mark.parametrize("count", [0, 2, 5])
@pytest.mark.parametrize("slot", [*LATENT, *INDEXER])
def test_list_lengths(slot, count):
    def mutate(model):
        weights = getattr(model, slot)
        setattr(model, slot, [*weights, *weights][:count])

    refused(f"Model.{slot}: expected 4 weights, one per layer, got {count}", mutate=mutate)


@pytest.mark.parametrize("slot", INDEXER)
def test_layers_that_share_have_no_indexer(slot):
    message = (
        rf"Model.{slot}\[1\]: expected an empty tensor, since ModelConfig.index_full_mask is False there, got shape"
    )
    refused(message, mutate=edit(slot, lambda _: torch.ones(32), layer=1))


@pytest.mark.parametrize("slot", INDEXER)
def test_full_layers_have_an_indexer(slot):
    mutate = edit(slot, lambda _: torch.zeros(0), layer=0)
    refused(rf"Model.{slot}\[0\]: expected shape \(.*, got \(0,\)", mutate=mutate)


@pytest.mark.parametrize("slot", ["mla_wuk_t", "mla_wuv", "mla_q_norm", "mla_kv_norm"])
def test_only_matrices_that_are_multiplied_with_may_be_packed(slot):
    class Packed:
        shape, dtype = (4, 24, 32), torch.float32

        def __call__(self, x, bias): ...

    with pytest.raises(TypeError, match=f"Model.{slot} takes a list of torch.Tensor"):
        setattr(xl.Model(), slot, [Packed()])


@pytest.mark.parametrize("slot", ["mha_qkv", "mha_qkv_bias", "mha_q_norm", "mha_k_norm"])
def test_slots_of_multi_head_attention(slot):
    mutate = lambda model: setattr(model, slot, [torch.ones(1)])  # noqa: E731
    refused(f"Model.{slot} is set, but ModelConfig.attn_type is AttnMLA: it would be ignored", "mla", mutate=mutate)


@pytest.mark.parametrize("slot", INDEXER)
def test_slots_of_the_indexer_in_a_dense_model(slot):
    mutate = lambda model: setattr(model, slot, [torch.ones(1)])  # noqa: E731
    refused(f"Model.{slot} is set, but ModelConfig.attn_type is AttnMLA: it would be ignored", "mla", mutate=mutate)


@pytest.mark.parametrize("slot", [*LATENT[:-1], *INDEXER])
def test_slots_of_latent_attention_in_a_multi_head_model(slot):
    hf = hf_model("llama")
    model = make_model(hf)
    setattr(model, slot, [torch.ones(1)])
    with pytest.raises(ValueError, match=f"Model.{slot} is set, but ModelConfig.attn_type is AttnMHA"):
        model.init(make_config(hf))


@pytest.mark.parametrize("slot", ["mla_q_norm_bias", "mla_kv_norm_bias"])
def test_norms_with_a_bias(slot):
    mutate = lambda model: setattr(model, slot, [torch.ones(48)] * 4)  # noqa: E731
    refused(f"Model.{slot} is set: xlite-adapter does not implement norms with a bias", mutate=mutate)


def test_weights_alias_what_was_set():
    harness = latent_harness("shared_dsa")
    given = {id(w) for slot in (*LATENT, *INDEXER) for w in getattr(harness.model, slot)}
    bound = harness.model._ready("test").decoder.layers
    indexers = [layer.attention.indexer for layer in bound]
    used = [w for layer in bound for w in layer.attention[:-1]] + [w for i in indexers if i for w in i]
    assert len(used) == 4 * 7 + 2 * 4
    assert {id(w) for w in used} <= given


def test_the_workspace_grows_with_the_batch_and_the_choice():
    def workspace(family, **fields):
        return initialise(family, fields=fields)._ready("test").workspace_bytes()

    assert workspace("mla") < workspace("mla", max_m=8192)
    assert workspace("mla") <= workspace("dsa") < workspace("dsa", index_topk=2048)


class PackedMatrix:
    """A matrix that can only be multiplied with."""

    def __init__(self, weight):
        self.hidden, self.shape, self.dtype = weight.t().contiguous(), tuple(weight.shape), weight.dtype

    def __call__(self, x, bias):
        return x @ self.hidden


def test_packed_weights():
    plain, packed = latent_harness("dsa"), latent_harness("dsa")
    for slot in ("mla_qkv_a", "mla_q_b", "attn_out", "index_q_b", "index_k_weights_proj"):
        setattr(packed.model, slot, [PackedMatrix(w) for w in getattr(packed.model, slot)])
    packed.model.init(packed.config)
    (x,), (y,) = (h.step([(h.sequence(40), 40)]) for h in (plain, packed))
    assert (x - y).abs().max() < 1e-4
