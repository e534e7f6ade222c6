"""A model's sizes from its config.json: parameters, KV cache and activations. Unknown models are refused."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from corun_pd.errors import SetupError

__all__ = ["ModelShape"]

_DENSE: Final = frozenset({"llama", "mistral", "qwen2", "qwen3"})
_EXPERTS: Final = frozenset({"mixtral", "qwen3_moe"})


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder with grouped-query attention and gated MLPs.

    `intermediate` is of one MLP; `experts` is 0 for a dense model, `active` how many run for a token.
    `layer_extras` are the parameters of a layer in norms, biases and routers.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    intermediate: int
    vocabulary: int
    experts: int
    active: int
    is_tied: bool
    layer_extras: int

    @classmethod
    def from_config(cls, path: Path) -> Self:
        """Raises SetupError for a file that cannot be read and for a model that is not known."""
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
            kind = config["model_type"]
            if kind not in _DENSE | _EXPERTS:
                known = ", ".join(sorted(_DENSE | _EXPERTS))
                raise SetupError(f"{path}: model type {kind!r} is not known to the planner; {known} are")
            return cls._from_fields(kind, config)
        except OSError as error:
            raise SetupError(f"{path}: {error.strerror}") from error
        except (ValueError, TypeError) as error:
            raise SetupError(f"{path}: {error}") from error
        except KeyError as error:
            raise SetupError(f"{path}: has no {error}") from error

    @classmethod
    def _from_fields(cls, kind: str, config: dict[str, int]) -> Self:
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        kv_heads = config.get("num_key_value_heads") or heads
        head = config.get("head_dim") or hidden // heads
        experts = config.get("num_local_experts") or config.get("num_experts") or 0
        if (kind in _EXPERTS) != (experts > 0):
            raise ValueError(f"model type {kind!r} with {experts} experts")
        extras = 2 * hidden + hidden * experts
        if kind.startswith("qwen3"):
            extras += 2 * head
        if kind == "qwen2":
            extras += (heads + 2 * kv_heads) * head
        return cls(
            layers=config["num_hidden_layers"],
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head=head,
            intermediate=config.get("moe_intermediate_size") or config["intermediate_size"],
            vocabulary=config["vocab_size"],
            experts=experts,
            active=config["num_experts_per_tok"] if experts else 1,
            is_tied=bool(config.get("tie_word_embeddings", False)),
            layer_extras=extras,
        )

    @property
    def parameters(self) -> int:
        """Of the whole model, embeddings included."""
        attention = 2 * self.hidden * (self.heads + self.kv_heads) * self.head
        mlps = 3 * self.hidden * self.intermediate * max(self.experts, 1)
        embeddings = self.vocabulary * self.hidden * (1 if self.is_tied else 2)
        return self.layers * (attention + mlps + self.layer_extras) + embeddings + self.hidden

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """KV cache of one token over all layers, whole model."""
        return 2 * self.layers * self.kv_heads * self.head * element_bytes

    def activation_bytes(self, step_tokens: int, slots: int, element_bytes: int) -> int:
        """The largest tensors alive at once, an estimate.

        Of a step: residual, its norm, and the wider of QKV and the MLP's gate, up and product. Of sampling:
        logits, probabilities and their order, in 32 bits for each of `slots` rows.
        """
        qkv = (self.heads + 2 * self.kv_heads) * self.head
        mlp = 3 * self.intermediate * self.active
        step = step_tokens * (2 * self.hidden + max(qkv, mlp)) * element_bytes
        return step + 3 * 4 * slots * self.vocabulary
