"""Makes a small model folder with random weights: no hub is asked.

    python tools/make_model.py OUT [--family qwen3|qwen3-moe|deepseek|sliding-window] [--layers COUNT]

`qwen3` is as wide as a model must be for its kernels to differ between one row and several: with a
hidden size of 1024 and less, this kind of CPU gives every shape the same bits, and a determinism test
proves nothing. The others are small and show that an architecture works. Equal arguments make equal
files.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Gemma3TextConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3MoeConfig,
)

VOCABULARY = 768
EOS, PAD, IM_START, IM_END = "<|endoftext|>", "<|pad|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
#: What the tokenizer's merges are learned from: enough for words, far too little for every character.
TEXT = [
    "The river ran down from the hills to the sea, and the town stood where it met the tide.",
    "A prompt is computed once; its keys and values move to where the answer is decoded.",
    "Return the same answer for the same question, whoever else is asking and in whatever order.",
    "def step(self): batch = self.schedule(); output = self.run(batch); return self.postprocess(output)",
    "One two three four five six seven eight nine ten, and then again from ten to one.",
]


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer: any text, and characters that take several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[EOS, PAD, IM_START, IM_END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS, pad_token=PAD)
    fast.add_special_tokens({"additional_special_tokens": [IM_START, IM_END]})
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_config(family: str, tokenizer: PreTrainedTokenizerFast, layers: int) -> PretrainedConfig:
    """The configuration of a family, in its smallest shape that shows what it is for; `layers` of qwen3's."""
    common: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
        "pad_token_id": tokenizer.pad_token_id,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
    }
    small = common | {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    if family == "qwen3":
        wide = {"hidden_size": 1536, "intermediate_size": 3072, "num_attention_heads": 16}
        heads = {"num_key_value_heads": 4, "head_dim": 64}
        return Qwen3Config(**(small | wide | heads | {"num_hidden_layers": layers}))
    if family == "qwen3-moe":
        experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
        return Qwen3MoeConfig(**(small | experts | {"head_dim": 64, "decoder_sparse_step": 1}))
    if family == "deepseek":
        latent = {
            "num_key_value_heads": 4,
            "q_lora_rank": 128,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 64,
            "qk_rope_head_dim": 64,
            "v_head_dim": 64,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "moe_intermediate_size": 128,
            "first_k_dense_replace": 1,
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
            "norm_topk_prob": True,
        }
        return DeepseekV3Config(**(small | latent))
    window = {"num_hidden_layers": 6, "head_dim": 64, "sliding_window": 64}
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    return Gemma3TextConfig(**(small | window | {"layer_types": kinds, "tie_word_embeddings": True}))


def make_model(out: Path, family: str, layers: int = 2) -> None:
    """Writes the folder, whole or not at all."""
    tokenizer = make_tokenizer()
    config = make_config(family, tokenizer, layers)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.dim() > 1:  # Norms stay at one. Wider than the default, so that logits are not flat.
            torch.nn.init.normal_(parameter, std=0.04, generator=generator)
    part = out.with_name(out.name + ".part")
    model.save_pretrained(part)
    tokenizer.save_pretrained(part)
    part.rename(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--family", default="qwen3", choices=["qwen3", "qwen3-moe", "deepseek", "sliding-window"]
    )
    parser.add_argument("--layers", type=int, default=2, help="Of qwen3; the others have their own.")
    arguments = parser.parse_args()
    if arguments.out.exists():
        print(f"{arguments.out} exists")
    else:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        make_model(arguments.out, arguments.family, arguments.layers)
        print(f"{arguments.out}: {arguments.family}")
