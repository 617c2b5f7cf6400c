"""What the integration does with experts that no model has yet: it knows them for sure, or refuses them by name."""

from __future__ import annotations

import copy
import sys
from types import SimpleNamespace

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.testing import CompileCounter

import uniep_compiler as uniep
from uniep_compiler.integrations import transformers as integration
from uniep_compiler.runtime.experts import make_layer

transformers = pytest.importorskip("transformers")
moe = pytest.importorskip("transformers.integrations.moe")

HIDDEN, INNER, EXPERTS, TOPK = 24, 16, 4, 2


@pytest.fixture(autouse=True, scope="module")
def registered():
    uniep.integrations.transformers.register()


def experts_class(name="PlainExperts", gate=None, **flags):
    """A class of experts as models have them; `gate` is how it applies its gate, if not as all others do."""

    class Experts(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.num_experts, self.limit, self.alpha = EXPERTS, 0.5, 1.702
            up = 2 * INNER if flags.get("has_gate", True) else INNER
            first = "gate_up_proj" if flags.get("has_gate", True) else "up_proj"
            for proj, rows, cols in ((first, up, HIDDEN), ("down_proj", HIDDEN, INNER)):
                shape = (EXPERTS, cols, rows) if flags.get("is_transposed") else (EXPERTS, rows, cols)
                setattr(self, proj, nn.Parameter(torch.randn(shape) * cols**-0.5))
                if flags.get("has_bias"):
                    setattr(self, f"{proj}_bias", nn.Parameter(torch.randn(EXPERTS, rows)))
            self.act_fn = config.act_fn

        def forward(self, hidden_states, top_k_index, top_k_weights):
            return moe.batched_mm_experts_forward(self, hidden_states, top_k_index, top_k_weights)

    Experts.__name__ = Experts.__qualname__ = name
    if gate is not None:
        gate.__qualname__ = f"{name}._apply_gate"
        Experts._apply_gate = gate
    return moe.use_experts_implementation(**flags)(Experts)


def make(act="silu", *, seed=0, **options):
    torch.manual_seed(seed)
    act_fn = transformers.activations.ACT2FN[act] if isinstance(act, str) else act
    config = SimpleNamespace(act_fn=act_fn, _experts_implementation="eager")
    return experts_class(**options)(config)


def inputs(tokens=9):
    generator = torch.Generator().manual_seed(1)
    ids = torch.rand(tokens, EXPERTS, generator=generator).topk(TOPK, dim=-1).indices
    return torch.randn(tokens, HIDDEN, generator=generator), ids, torch.rand(tokens, TOPK, generator=generator)


@torch.no_grad()
def run(module, *args, implementation="uniep", **kwargs):
    module.config._experts_implementation = implementation
    return module(*args, **kwargs)


def agrees(module, *args):
    expected = run(module, *args, implementation="eager")
    return ((run(module, *args) - expected).norm() / expected.norm()).item() < 1e-5


def gpt_oss_gate(self, gate_up):
    gate, up = gate_up[..., ::2], gate_up[..., 1::2]
    gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
    return (up + 1) * gate * torch.sigmoid(gate * self.alpha)


# -- what is known -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("is_transposed", [False, True], ids=["", "transposed"])
@pytest.mark.parametrize("has_gate", [False, True], ids=["", "gate"])
def test_flags_are_read(has_gate, is_transposed, has_bias):
    assert agrees(make(has_gate=has_gate, is_transposed=is_transposed, has_bias=has_bias), *inputs())


KNOWN = (
    *("gelu", "gelu_accurate", "gelu_fast", "gelu_new", "gelu_python", "gelu_python_tanh", "gelu_pytorch_tanh"),
    *("hardswish", "linear", "quick_gelu", "relu", "relu2", "relu6", "sigmoid", "silu", "swish", "tanh"),
)
FUNCTIONS = (nn.functional.silu, nn.functional.gelu, nn.functional.relu, nn.GELU(approximate="tanh"), torch.sigmoid)


@pytest.mark.parametrize("act", [name for name in KNOWN if name in transformers.activations.ACT2CLS])
def test_activations_of_transformers_are_known(act):
    assert agrees(make(act, has_gate=False), *inputs())


@pytest.mark.parametrize("act", FUNCTIONS, ids=["silu", "gelu", "relu", "gelu_tanh", "sigmoid"])
def test_activations_of_torch_are_known(act):
    assert agrees(make(act), *inputs())


@pytest.mark.parametrize("act", sorted(set(transformers.activations.ACT2CLS) - set(KNOWN)))
def test_other_activations_are_refused_by_name(act):
    module = make(act)
    with pytest.raises(uniep.UniepError) as caught:
        run(module, *inputs())
    assert caught.value.codes == ("UEP0605",)
    assert (
        f"`PlainExperts` cannot run on uniep: its experts have the activation `{type(module.act_fn).__name__}`"
        in str(caught.value)
    )


def test_names_of_parameters_may_be_given():
    hidden, ids, weights = inputs()
    out = run(make(), hidden, top_k_index=ids, top_k_weights=weights)
    assert torch.equal(out, run(make(), hidden, ids, weights))


def test_bf16_weights_and_router_weights():
    hidden, ids, weights = inputs()
    module = make().to(torch.bfloat16)
    out = run(module, hidden.bfloat16(), ids, weights.bfloat16())
    expected = run(make(), hidden, ids, weights)
    assert out.dtype == torch.bfloat16
    assert ((out - expected).norm() / expected.norm()).item() < 1e-2


def test_numbers_are_read_from_each_module():
    """Two modules of one class with other limits are other layers."""
    options = {"name": "GptOssExperts", "gate": gpt_oss_gate, "is_concatenated": False}
    wide = make(**options)
    wide.limit = 7.0
    assert [integration.form_of(module).limit for module in (wide, make(**options))] == [7.0, 0.5]


# -- what is not -------------------------------------------------------------------------------------------------------


def refusal(module):
    with pytest.raises(uniep.UniepError) as caught:
        run(module, *inputs())
    assert caught.value.codes == ("UEP0605",)
    assert f"`{type(module).__name__}` cannot run on uniep" in str(caught.value)
    assert "set_experts_implementation" in str(caught.value)
    return str(caught.value)


def test_a_gate_that_is_not_known_is_refused():
    module = make(name="NewExperts", gate=lambda self, h: h[..., :INNER])
    assert "apply their gate by `NewExperts._apply_gate`, which is not known" in refusal(module)


def test_a_gate_of_one_module_alone_is_refused():
    module = make()
    module._apply_gate = lambda h: h[..., :INNER]
    assert "apply their gate by" in refusal(module)


def halves(self, gate_up):
    gate, up = gate_up.chunk(2, dim=-1)
    return (up + 1) * gate.clamp(max=self.limit)


@pytest.mark.parametrize("gate", [halves, lambda self, h: h, lambda self, h: h @ h])
def test_a_known_name_with_another_function_is_refused(gate):
    """As of a class of one's own that has the name of a known one, or after an update."""
    message = refusal(make(name="GptOssExperts", gate=gate, is_concatenated=False))
    assert "computes something else than its name says" in message or "cannot be tried" in message


def test_a_known_activation_with_another_function_is_refused():
    class SiLU(nn.Module):
        def forward(self, x):
            return x * torch.sigmoid(1.01 * x)

    assert "computes something else than its name says" in refusal(make(SiLU()))


def test_flags_that_contradict_the_gate_are_refused():
    assert "have gate and up in turn, but split them in halves" in refusal(make(is_concatenated=False))


def test_weights_that_are_not_there_are_refused():
    module = make()
    del module.down_proj
    assert "have no tensor `down_proj`" in refusal(module)


@pytest.mark.parametrize("module", [None, 3, "x", nn.Linear(2, 2), nn.Module()])
def test_what_is_no_module_of_experts_is_refused(module):
    with pytest.raises(uniep.UniepError, match=r"experts (are a module, not|do not say `has_gate`)") as caught:
        integration.form_of(module)
    assert caught.value.codes == ("UEP0605",)


@pytest.mark.parametrize("limit", [None, "seven"])
def test_a_number_that_a_gate_reads_has_to_be_there(limit):
    name = next(name for name, gate in integration.GATES.items() if gate.numbers == ("limit", "alpha"))
    module = make(name=name.partition(".")[0], gate=lambda self, x: x)
    module.limit = limit
    with pytest.raises(uniep.UniepError, match="have no number `limit`") as caught:
        integration.form_of(module)
    assert caught.value.codes == ("UEP0605",)


def test_every_gate_is_compared_once_per_class_and_numbers(monkeypatch):
    compared = []
    plain = integration._activated
    monkeypatch.setattr(integration, "_activated", lambda form, rows: compared.append(form) or plain(form, rows))
    first = make(name="GptOssExperts", gate=gpt_oss_gate, is_concatenated=False)
    other = copy.deepcopy(first)
    other.limit = 7.0
    for module in (first, first, copy.deepcopy(first), other):
        integration.form_of(module)
    assert [form.limit for form in compared] == [0.5, 7.0]


# -- expert parallelism ------------------------------------------------------------------------------------------------


def test_under_an_expert_parallel_plan_one_id_more_is_no_expert():
    module, (hidden, ids, weights) = make(), inputs()
    elsewhere = torch.zeros_like(ids, dtype=torch.bool)
    elsewhere[0], elsewhere[3, 1] = True, True
    module._is_expert_parallel = True
    local = ids.masked_fill(elsewhere, EXPERTS)
    out = run(module, hidden, local, weights)
    expected = run(module, hidden, ids, weights.masked_fill(elsewhere, 0.0), implementation="eager")
    assert torch.allclose(out, expected, atol=1e-5)
    assert not out[0].any()
    assert torch.equal(local, ids.masked_fill(elsewhere, EXPERTS))  # the caller's ids are as they were


def test_without_such_a_plan_that_id_is_an_error():
    module, (hidden, ids, weights) = make(), inputs()
    ids[0, 0] = EXPERTS
    module._is_expert_parallel = False
    with pytest.raises(uniep.UniepError, match="UEP0603"):
        run(module, hidden, ids, weights)


def test_a_rank_may_have_fewer_experts_than_a_token_has_routes():
    """Six routes per token over many ranks, of which four go elsewhere at least."""
    module, (hidden, ids, weights) = make(), inputs()
    module._is_expert_parallel = True
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    many = torch.cat([ids, torch.full((len(ids), 4), EXPERTS)], dim=1)[:, order]
    of_each = torch.cat([weights, torch.zeros(len(ids), 4)], dim=1)[:, order]
    assert torch.allclose(run(module, hidden, many, of_each), run(module, hidden, ids, weights), atol=1e-6)


def test_more_routes_than_that_are_an_error_and_never_lost():
    module, (hidden, ids, weights) = make(), inputs()
    module._is_expert_parallel = True
    with pytest.raises(RuntimeError, match="a token names an expert twice"):
        run(module, hidden, ids.repeat(1, 3), weights.repeat(1, 3))


# -- layers and models -------------------------------------------------------------------------------------------------


def test_modules_that_are_alike_share_a_layer():
    before = make_layer.cache_info()
    for seed in range(3):
        run(make(seed=seed, name=f"Experts{seed}", is_transposed=True, has_bias=True, act="relu6"), *inputs())
    after = make_layer.cache_info()
    assert (after.misses - before.misses, after.hits - before.hits) == (1, 2)


def tiny(**options):
    config = transformers.Qwen3MoeConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        moe_intermediate_size=32,
        num_experts=4,
        num_experts_per_tok=2,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=8,
        initializer_range=0.2,
        use_cache=False,
        **options,
    )
    torch.manual_seed(0)
    return transformers.Qwen3MoeForCausalLM(config).eval()


@torch.no_grad()
def logits(model):
    return model(input_ids=torch.arange(8)[None]).logits


def test_a_saved_model_is_loaded_onto_uniep(tmp_path):
    expected = logits(made := tiny())
    made.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, experts_implementation="uniep")
    assert loaded.config._experts_implementation == "uniep"
    out = logits(loaded.eval())
    assert 0 < (out - expected).norm() < 1e-5 * expected.norm()


def test_models_can_be_made_switched_copied_and_moved():
    made = tiny(experts_implementation="uniep")
    out = logits(made)
    assert torch.equal(logits(copy.deepcopy(made)), out)
    made.set_experts_implementation("eager")
    assert not torch.equal(logits(made), out)
    made.set_experts_implementation("uniep")
    assert torch.equal(logits(made), out)
    assert logits(made.to(torch.bfloat16)).dtype == torch.bfloat16


@torch.no_grad()
def test_a_model_is_compiled_without_a_break():
    made = tiny(experts_implementation="uniep")
    compiled = torch.compile(made, fullgraph=True, backend="eager")
    assert torch.equal(compiled(input_ids=torch.arange(8)[None]).logits, logits(made))


@torch.no_grad()
def test_modules_that_are_alike_share_their_graphs():
    torch._dynamo.reset()
    counter = CompileCounter()
    first = make(name="SharedExperts")
    for seed in range(5):
        torch.manual_seed(seed)
        module = type(first)(first.config)
        module.config._experts_implementation = "uniep"
        compiled = torch.compile(module, fullgraph=True, backend=counter)
        assert torch.equal(compiled(*inputs()), module(*inputs()))
    assert counter.frame_count == 2  # the first module's, at which the gate is compared, and one for all others


@torch.no_grad()
def test_unknown_experts_are_refused_by_name_while_they_are_compiled():
    module = make(name="NewExperts", gate=lambda self, h: h[..., :INNER])
    module.config._experts_implementation = "uniep"
    with pytest.raises(Exception, match="`NewExperts` cannot run on uniep"):
        torch.compile(module, fullgraph=True, backend="eager")(*inputs())


def test_registering_again_changes_nothing():
    before = dict(moe.ALL_EXPERTS_FUNCTIONS)
    uniep.integrations.transformers.register()
    assert dict(moe.ALL_EXPERTS_FUNCTIONS) == before
    assert before["uniep"] is integration.experts_forward


def test_without_transformers_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(uniep.UniepError) as caught:
        uniep.integrations.transformers.register()
    assert caught.value.codes == ("UEP0605",)
    assert "pip install 'uniep-compiler[transformers]'" in str(caught.value)


def test_an_old_transformers_is_named(monkeypatch):
    """One that has experts implementations, but a fixed list of them."""
    monkeypatch.delattr(sys.modules["transformers.modeling_utils"], "ALL_EXPERTS_FUNCTIONS")
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "5.6.2")
    with pytest.raises(uniep.UniepError, match=r"transformers 5\.6\.2 does not let others compute") as caught:
        uniep.integrations.transformers.register()
    assert caught.value.codes == ("UEP0605",)


def test_other_integrations_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'trnsformers'"):
        uniep.integrations.trnsformers  # noqa: B018
