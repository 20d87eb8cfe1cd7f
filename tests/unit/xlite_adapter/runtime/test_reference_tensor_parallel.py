"""Two ranks over gloo compute what one does."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from reference_models import Harness, hf_model, make_model, rope_table

from xlite_adapter.runtime import reference as xl
from xlite_adapter.runtime.reference.kernels import TorchKernels

FAMILIES = [("llama", {}), ("qwen2", {"num_key_value_heads": 1}), ("qwen3", {})]


def rank_main(rank, folder):
    """What each rank's process runs; weights come from a file, so that it need not import transformers."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    outputs = []
    for sizes, weights, table in torch.load(folder / f"weights{rank}.pt"):
        model = xl.Model()
        for slot, value in weights.items():
            setattr(model, slot, value)
        hf = SimpleNamespace(config=SimpleNamespace(**sizes))
        outputs.append(batches(Harness(hf, runtime=xl.Runtime(0, rank=rank, tp_size=2), model=model, table=table)))
    torch.save(outputs, folder / f"outputs{rank}.pt")
    dist.destroy_process_group()


def save_weights(rank, folder):
    parts = []
    for family, sizes in FAMILIES:
        hf = hf_model(family, **sizes)
        plain = {k: v for k, v in hf.config.to_dict().items() if isinstance(v, (int, float, str))}
        weights = {k: v for k, v in vars(make_model(hf, rank, tp=2)).items() if not k.startswith("_")}
        parts.append((plain, weights, rope_table(hf)))
    torch.save(parts, folder / f"weights{rank}.pt")


def batches(harness):
    """Hidden states of prefill, mixed and decode batches, and logits of two rows."""
    a, b = harness.sequence(30, 1), harness.sequence(45, 2)
    hidden = harness.step([(a, 29)]) + harness.step([(a, 1), (b, 44)]) + harness.step([(b, 1)])
    tp = harness.runtime.tp_size
    logits = torch.full((tp, 3, harness.hf.config.vocab_size // tp), 7.0)
    rows = torch.tensor([0, 28], dtype=torch.int32)
    harness.model.forward_get_logits(harness.runtime, hidden[0].contiguous(), rows, logits)
    assert (logits[:, 2] == 7).all()
    return torch.cat(hidden), torch.cat(list(logits[:, :2]), dim=1)


@pytest.mark.timeout(180)
def test_two_ranks_equal_one(tmp_path):
    for rank in (0, 1):
        save_weights(rank, tmp_path)
    mp.spawn(rank_main, args=(tmp_path,), nprocs=2)
    ranks = [torch.load(tmp_path / f"outputs{rank}.pt") for rank in (0, 1)]
    for index, (family, sizes) in enumerate(FAMILIES):
        hidden, logits = batches(Harness(hf_model(family, **sizes)))
        for rank in ranks:
            difference = (rank[index][0] - hidden).abs().max().item()
            print(f"{family}: largest difference between TP 2 and TP 1: {difference:.2e}")
            assert difference < 1e-4
            assert (rank[index][1] - logits).abs().max() < 1e-3


class Counting(TorchKernels):
    """Kernels with an all-reduce of their own, which pretends that the other rank adds nothing."""

    calls = 0

    def all_reduce(self, x):
        self.calls += 1
        return x


def test_an_injected_all_reduce_is_used():
    kernels = Counting()
    harness = Harness(hf_model("llama"), runtime=xl.Runtime(0, rank=1, tp_size=2, kernels=kernels))
    harness.step([(harness.sequence(4), 4)])
    assert kernels.calls == 1 + 2 * 3  # the embedding, then attn_out and mlp_down of each layer


def test_a_runtime_of_another_rank_is_refused():
    harness = Harness(hf_model("llama"), runtime=xl.Runtime(0, rank=1, tp_size=2, kernels=Counting()))
    harness.runtime = xl.Runtime(0, rank=0, tp_size=2, kernels=Counting())
    with pytest.raises(RuntimeError, match=r"Runtime.rank is 0, which is not rank 1 that Model.init was given"):
        harness.step([(harness.sequence(4), 4)])
