"""Every Mixture-of-Experts model of transformers that lets others compute its experts, small and with random weights.

Its logits are those of its own experts, or it is refused by name. `MODELS` has an entry for each class of experts, so a
new one in transformers fails a test here until somebody has looked at it.
"""

from __future__ import annotations

import ast
import os
import re
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
import torch

import uniep_compiler as uniep

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # models are made from configs: there is nothing to fetch
transformers = pytest.importorskip("transformers")
moe = pytest.importorskip("transformers.integrations.moe")

PAGE = Path(__file__).parents[2] / "docs" / "transformers.md"
NUM_TOKENS = 12
TOLERANCE = 1e-5

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # attention
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "index_n_heads": 2,
    "index_head_dim": 16,
    "index_topk": 8,
    # experts, under all of their names
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_topk": 2,
    "moe_k": 2,
    "top_k_experts": 2,
    "n_shared_experts": 1,
    "num_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    # which layers have experts
    "first_k_dense_replace": 0,
    "num_dense_layers": 0,
    "decoder_sparse_step": 1,
}
"""What is set in every config that has it."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model class of a module `transformers.models.<family>`, and what its config has besides `SIZES`."""

    family: str
    name: str
    changes: dict[str, object] = field(default_factory=dict)


def model(family, name, **changes):
    return Model(family=family, name=name, changes=changes)


SPARSE = ["sparse", "sparse"]


def rope(sections):
    return {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0, "mrope_section": sections}


MODELS = {
    "AXK1Experts": model("axk1", "AXK1ForCausalLM"),
    "AXK2Experts": model("axk2", "AXK2ForCausalLM"),
    "AfmoeExperts": model("afmoe", "AfmoeForCausalLM"),
    "AriaExperts": model("aria", "AriaTextForCausalLM"),
    "BailingHybridExperts": model("bailing_hybrid", "BailingHybridForCausalLM"),
    "BeamExperts": model("beam", "BeamForCausalLM"),
    "Cohere2MoeExperts": model("cohere2_moe", "Cohere2MoeForCausalLM"),
    "DeepseekOcr2TextExperts": model("deepseek_ocr2", "DeepseekOcr2TextModel", mlp_layer_types=SPARSE),
    "DeepseekV2Experts": model("deepseek_v2", "DeepseekV2ForCausalLM"),
    "DeepseekV32Experts": model("deepseek_v32", "DeepseekV32ForCausalLM"),
    "DeepseekV3Experts": model("deepseek_v3", "DeepseekV3ForCausalLM"),
    "DeepseekV4Experts": model("deepseek_v4", "DeepseekV4ForCausalLM", mlp_layer_types=["moe", "moe"]),
    "DiffusionGemmaTextExperts": model("diffusion_gemma", "DiffusionGemmaEncoderTextModel", global_head_dim=8),
    "Dots1Experts": model("dots1", "Dots1ForCausalLM"),
    "Dots3NoteExperts": model("dots3_note", "Dots3NoteTextModel"),
    "Ernie4_5_MoeExperts": model("ernie4_5_moe", "Ernie4_5_MoeForCausalLM"),
    "Ernie4_5_VLMoeMoeExperts": model(
        "ernie4_5_vl_moe", "Ernie4_5_VLMoeTextModel", moe_intermediate_size=[32, 32], rope_parameters=rope([1, 1, 2])
    ),
    "ExaoneMoeExperts": model("exaone_moe", "ExaoneMoeForCausalLM"),
    "FlexOlmoExperts": model("flex_olmo", "FlexOlmoForCausalLM"),
    "FlintExperts": model("flint", "FlintForCausalLM", mlp_only_layers=[]),
    "Gemma4TextExperts": model("gemma4", "Gemma4ForCausalLM", enable_moe_block=True, global_head_dim=8),
    "Glm4MoeExperts": model("glm4_moe", "Glm4MoeForCausalLM"),
    "Glm4MoeLiteExperts": model("glm4_moe_lite", "Glm4MoeLiteForCausalLM"),
    "Glm4vMoeTextExperts": model("glm4v_moe", "Glm4vMoeTextModel", rope_parameters=rope([1, 1, 2])),
    "Glm5NextTextExperts": model(
        "glm5_next", "Glm5NextTextModel", qk_rope_head_dim=0, index_kpool=4, linear_head_dim=8, linear_num_heads=4
    ),
    "GlmMoeDsaExperts": model("glm_moe_dsa", "GlmMoeDsaForCausalLM"),
    "GptOssExperts": model("gpt_oss", "GptOssForCausalLM"),
    "GraniteMoeExperts": model("granitemoe", "GraniteMoeForCausalLM"),
    "GraniteMoeHybridExperts": model("granitemoehybrid", "GraniteMoeHybridForCausalLM", mamba_n_heads=4),
    "GraniteMoeSWAExperts": model("granitemoe_swa", "GraniteMoeSWAForCausalLM"),
    "GraniteMoeSharedExperts": model("granitemoeshared", "GraniteMoeSharedForCausalLM"),
    "HYV3Experts": model("hy_v3", "HYV3ForCausalLM"),
    "HYV4Experts": model("hy_v4", "HYV4ForCausalLM"),
    "HYV4VLExperts": model("hy_v4_vl", "HYV4VLTextModel", rope_parameters=rope([2, 1, 1])),
    "HunYuanMoEV1Experts": model("hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM"),
    "Inkling2Experts": model("inkling2", "Inkling2ForCausalLM"),
    "Inkling2LoopExperts": model("inkling2_loop", "Inkling2LoopForCausalLM"),
    "InklingExperts": model("inkling", "InklingForCausalLM"),
    "JambaExperts": model("jamba", "JambaForCausalLM", use_mamba_kernels=False),
    "KimiLinearExperts": model("kimi_linear", "KimiLinearForCausalLM"),
    "Kolibri1Experts": model("kolibri1", "Kolibri1ForCausalLM"),
    "LagunaExperts": model("laguna", "LagunaForCausalLM"),
    "LaraMiniExperts": model("lara_mini", "LaraMiniForCausalLM"),
    "Lfm2MoeExperts": model("lfm2_moe", "Lfm2MoeForCausalLM", layer_types=["conv", "full_attention"]),
    "MellumExperts": model("mellum", "MellumForCausalLM"),
    "MiMoV2FlashExperts": model("mimo_v2_flash", "MiMoV2FlashForCausalLM", num_key_value_heads=2),
    "MiniMaxExperts": model("minimax", "MiniMaxForCausalLM"),
    "MiniMaxM2Experts": model("minimax_m2", "MiniMaxM2ForCausalLM"),
    "MiniMaxM3VLExperts": model("minimax_m3_vl", "MiniMaxM3VLForCausalLM"),
    "Mistral4Experts": model("mistral4", "Mistral4ForCausalLM", head_dim=16),
    "MistralLarge4TextExperts": model("mistral_large4", "MistralLarge4TextModel"),
    "MixtralExperts": model("mixtral", "MixtralForCausalLM"),
    "MuseSparkExperts": model("muse_spark", "MuseSparkTextModel"),
    "NemotronHExperts": model("nemotron_h", "NemotronHForCausalLM"),
    "OlmoeExperts": model("olmoe", "OlmoeForCausalLM"),
    "OpenAIPrivacyFilterExperts": model("openai_privacy_filter", "OpenAIPrivacyFilterForTokenClassification"),
    "PhimoeExperts": model("phimoe", "PhimoeForCausalLM"),
    "Qwen2MoeExperts": model("qwen2_moe", "Qwen2MoeForCausalLM"),
    "Qwen3MoeExperts": model("qwen3_moe", "Qwen3MoeForCausalLM"),
    "Qwen3NextExperts": model("qwen3_next", "Qwen3NextForCausalLM"),
    "Qwen3OmniMoeTalkerTextExperts": model(
        "qwen3_omni_moe", "Qwen3OmniMoeTalkerModel", shared_expert_intermediate_size=32
    ),
    "Qwen3OmniMoeThinkerTextExperts": model("qwen3_omni_moe", "Qwen3OmniMoeThinkerTextModel"),
    "Qwen3VLMoeTextExperts": model("qwen3_vl_moe", "Qwen3VLMoeTextModel"),
    "Qwen3_5MoeExperts": model("qwen3_5_moe", "Qwen3_5MoeForCausalLM"),
    "Qwen4ExpTextExperts": model("qwen4_exp", "Qwen4ExpForCausalLM"),
    "SolarOpenExperts": model("solar_open", "SolarOpenForCausalLM"),
    "UnlimitedOcrTextExperts": model("unlimited_ocr", "UnlimitedOcrTextModel"),
    "ZayaExperts": model("zaya", "ZayaForCausalLM", num_experts_per_tok=1),
}
"""Every class of experts, in a model that has it."""

REFUSED = {"MuseSparkExperts": "normalise what each expert gives"}
"""Experts that programs cannot say, and what the error says of them."""

QUICK = (
    "DeepseekV3Experts",
    "Glm4MoeExperts",
    "GptOssExperts",
    "MixtralExperts",
    "MuseSparkExperts",
    "NemotronHExperts",
    "OlmoeExperts",
    "PhimoeExperts",
    "Qwen2MoeExperts",
    "Qwen3MoeExperts",
)


@pytest.fixture(autouse=True, scope="module")
def registered():
    uniep.integrations.transformers.register()
    moe.ALL_EXPERTS_FUNCTIONS.register("zeros", lambda module, hidden, *_: torch.zeros_like(hidden))


@cache
def experts_classes():
    """The classes that transformers decorates, by its sources."""
    found = set()
    for path in Path(transformers.__file__).parent.glob("models/*/modeling_*.py"):
        text = path.read_text("utf-8")
        if "use_experts_implementation" in text:
            found |= {node.name for node in ast.parse(text).body if is_decorated(node)}
    return found


def is_decorated(node):
    names = [ast.unparse(item) for item in node.decorator_list] if isinstance(node, ast.ClassDef) else []
    return any(name.startswith("use_experts_implementation") for name in names)


def test_every_class_of_experts_has_an_entry():
    assert experts_classes() - set(MODELS) == set()


def test_the_page_names_each_of_them():
    works, refused = PAGE.read_text("utf-8").partition("These are refused:")[::2]
    assert set(re.findall(r"\w+Experts\b", works)) == set(MODELS) - set(REFUSED)
    assert set(re.findall(r"\w+Experts\b", refused)) == set(REFUSED)


def config_of(entry, model_class):
    """A small config."""
    config_class = model_class.config_class
    default = config_class()
    known = {name: value for name, value in SIZES.items() if name in dir(default)}
    layers = {
        name: getattr(default, name)[: SIZES["num_hidden_layers"]]
        for name in ("layer_types",)
        if isinstance(default.__dict__.get(name), list)
    }
    if isinstance(default.__dict__.get("mlp_layer_types"), list):
        layers["mlp_layer_types"] = SPARSE
    return config_class(**{**known, **layers, **entry.changes})


def make_model(experts):
    if experts not in experts_classes():
        pytest.skip(f"transformers {transformers.__version__} does not have it")
    entry = MODELS[experts]
    model_class = getattr(import_module(f"transformers.models.{entry.family}.modeling_{entry.family}"), entry.name)
    config = config_of(entry, model_class)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    made = model_class(config).eval()
    with torch.no_grad():
        for param in made.parameters():
            if param.dim() > 1:
                param.normal_(0, 0.2)
    assert experts in {type(module).__name__ for module in made.modules()}
    return made


@torch.no_grad()
def logits(made, implementation):
    """What a model gives with these experts: logits, or the last hidden state of one without a head."""
    made.set_experts_implementation(implementation)
    ids = torch.randint(3, SIZES["vocab_size"], (1, NUM_TOKENS), generator=torch.Generator().manual_seed(0))
    takes_ids = type(made).__name__ != "Qwen3OmniMoeTalkerModel"  # whose own embedding of ids is broken
    out = made(input_ids=ids) if takes_ids else made(inputs_embeds=made.get_input_embeddings()(ids))
    return out.logits if getattr(out, "logits", None) is not None else out.last_hidden_state


def difference(out, expected):
    return ((out - expected).norm() / expected.norm()).item()


def check(experts):
    made = make_model(experts)
    if experts in REFUSED:
        with pytest.raises(uniep.UniepError) as caught:
            logits(made, "uniep")
        assert caught.value.codes == ("UEP0605",)
        assert f"`{experts}` cannot run on uniep: its experts {REFUSED[experts]}" in str(caught.value)
        return
    expected = logits(made, "eager")
    assert difference(logits(made, "zeros"), expected) > 1e-3  # the comparison says something about the experts
    assert difference(logits(made, "uniep"), expected) < TOLERANCE


@pytest.mark.parametrize("experts", QUICK)
def test_logits_are_those_of_the_model(experts):
    check(experts)


@pytest.mark.long
@pytest.mark.parametrize("experts", sorted(set(MODELS) - set(QUICK)))
def test_logits_of_every_model_are_its_own(experts):
    check(experts)


def gradients_of_a_step(made, implementation):
    """The gradients of all parameters of a model, by name, after a step on one sequence."""
    made.set_experts_implementation(implementation)
    made.zero_grad()
    ids = torch.randint(3, SIZES["vocab_size"], (1, NUM_TOKENS), generator=torch.Generator().manual_seed(0))
    made(input_ids=ids, labels=ids).loss.backward()
    return {name: param.grad for name, param in made.named_parameters()}


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_model_trains(checkpointed):
    """Each gradient of a training step is that of the model's own experts."""
    made = make_model("Qwen3MoeExperts").train()
    expected = gradients_of_a_step(made, "eager")
    if checkpointed:
        made.gradient_checkpointing_enable()
    found = gradients_of_a_step(made, "uniep")
    assert {name for name, grad in expected.items() if "experts" in name and grad.any()} >= {
        f"model.layers.{layer}.mlp.experts.{weight}" for layer in (0, 1) for weight in ("gate_up_proj", "down_proj")
    }
    for name, right in expected.items():
        assert difference(found[name], right) < TOLERANCE, name
