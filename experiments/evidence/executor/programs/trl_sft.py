"""TRL's SFTTrainer on a Llama, with prompts and answers of drawn lengths, whose prompts count for no loss."""

import tempfile

import datasets
import transformers
import trl

import texts


def llama(run, vocabulary, length, **large):
    sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 4,
             **large} if run.large else {"hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4,
                                         "num_key_value_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=vocabulary, max_position_embeddings=length, use_cache=False,
                                                                  pad_token_id=0, bos_token_id=2, eos_token_id=3, **sizes))


def train(run):
    texts.quiet()
    vocabulary, length = (32000, 1024) if run.large else (96, 64)
    tokenizer = texts.tokenizer(vocabulary)
    count = 40 * run.batch(4, 8)
    data = datasets.Dataset.from_dict({"prompt": texts.words(count, 2, length // 2, vocabulary),
                                       "completion": [" " + text for text in texts.words(count, 2, length // 2, vocabulary, 5)]})
    with tempfile.TemporaryDirectory() as folder:
        return texts.trained(trl.SFTTrainer(
            llama(run, vocabulary, length),
            texts.arguments(run, folder, trl.SFTConfig, per_device_train_batch_size=run.batch(4, 8), max_length=length),
            train_dataset=data, processing_class=tokenizer, callbacks=run.callbacks()))
