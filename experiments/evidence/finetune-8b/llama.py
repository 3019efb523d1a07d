"""A training step of Llama-3-8B, with all parameters in bf16, or in fp32 under autocast to bf16."""

TINY = dict(hidden_size=64, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2, intermediate_size=192, vocab_size=512)
LLAMA_3_8B = dict(hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, intermediate_size=14336,
                  vocab_size=128256)


def make(numbers, batch, device="cuda", tiny=False):
    """Returns a model, its optimizer, and a function that trains a step and returns its loss.

    `numbers` is "bf16" or "fp32". A step has `batch` texts of 2,048 tokens, or of 64 if the model is `tiny`.
    """
    import torch
    import transformers
    config = transformers.LlamaConfig(**(TINY if tiny else LLAMA_3_8B), use_cache=False)
    with torch.device(device):
        torch.set_default_dtype(torch.bfloat16 if numbers == "bf16" else torch.float32)
        model = transformers.LlamaForCausalLM(config)
        torch.set_default_dtype(torch.float32)
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        tokens = torch.randint(config.vocab_size, (batch, 64 if tiny else 2048), device=device)
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=numbers == "fp32"):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        return loss

    return model, optimizer, step
