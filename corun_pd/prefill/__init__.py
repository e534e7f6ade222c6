"""The prefill role: prompts in, first tokens and KV handoffs out."""
