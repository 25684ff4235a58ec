"""Sample from a model by the entropy of its attention and of its logits.

A batch with padding: each sequence gets a temperature of its own for every token. Hidden keys and
padding have no part in the entropies, and a sequence that has ended changes nothing.

Run with: python examples/sample_by_entropy.py
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import attentropy as at
from attentropy.models.sampling import NextToken

torch.manual_seed(0)
sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
config = LlamaConfig(vocab_size=200, num_attention_heads=8, num_key_value_heads=2, **sizes)
model = LlamaForCausalLM(config).eval()

PAD, END = 0, 7
prompts = torch.tensor([[11, 12, 13, 14, 15, 16], [PAD, PAD, PAD, 21, 22, 23]])
settings = {"max_new_tokens": 12, "do_sample": True, "pad_token_id": PAD, "eos_token_id": END}

temperatures = []


def rule(now: NextToken) -> torch.Tensor:
    """Careful where the model is unsure of the token, bold where its attention is divided."""
    found = at.TemperatureByEntropy(
        base=1.5, entropy=-0.1, varentropy=0.05, attention_entropy=0.1, attention_varentropy=0.02
    )(now)
    temperatures.append(found)
    return found


with at.watch(model) as w:
    found = model.generate(
        prompts,
        attention_mask=(prompts != PAD).long(),
        logits_processor=[at.EntropyLogitsProcessor(w, rule)],
        **settings,
    )

print(f"{found.shape[1] - prompts.shape[1]} steps for {len(prompts)} sequences")
for row in w.tokens():
    heads = [entropy for layer in row.entropy for entropy in layer]
    print(
        f"sequence {row.sequence} step {row.step:2}: token {row.token:3}"
        f"  surprise {row.surprise:5.2f}"
        f"  attention entropy {sum(heads) / len(heads):4.2f}"
        f"  temperature {temperatures[row.step][row.sequence]:4.2f}"
    )
