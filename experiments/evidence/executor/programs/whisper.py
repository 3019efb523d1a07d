"""Whisper with transformers' Seq2SeqTrainer: frames of sound, and texts of drawn lengths that each batch pads."""

import random
import tempfile

import torch
import transformers

import texts


class Sounds(torch.utils.data.Dataset):
    def __init__(self, count, frames, vocabulary, most):
        draw = random.Random(1)
        self.frames, self.texts = frames, [[draw.randrange(4, vocabulary) for _ in range(draw.randint(2, most))] for _ in range(count)]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, at):
        return {"input_features": torch.randn(80, self.frames, generator=torch.Generator().manual_seed(at)), "labels": self.texts[at]}


class Collator:
    """Pads the texts of a batch; what is padded counts for no loss."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def __call__(self, examples):
        batch = {"input_features": torch.stack([e["input_features"] for e in examples])}
        padded = self.tokenizer.pad({"input_ids": [e["labels"] for e in examples]}, return_tensors="pt")
        return {**batch, "labels": padded["input_ids"].masked_fill(padded.attention_mask.ne(1), -100)}


def train(run):
    texts.quiet()
    vocabulary, most, places = (51865, 224, 1500) if run.large else (96, 20, 24)
    sizes = {"d_model": 768, "encoder_layers": 12, "decoder_layers": 12, "encoder_attention_heads": 12, "decoder_attention_heads": 12,
             "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072} if run.large else {
                 "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
                 "encoder_ffn_dim": 96, "decoder_ffn_dim": 96}
    model = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(
        vocab_size=vocabulary, num_mel_bins=80, max_source_positions=places, max_target_positions=most + 2, pad_token_id=0, bos_token_id=2,
        eos_token_id=3, decoder_start_token_id=2, use_cache=False, apply_spec_augment=True, mask_time_prob=0.1, **sizes))
    with tempfile.TemporaryDirectory() as folder:
        return texts.trained(transformers.Seq2SeqTrainer(
            model, texts.arguments(run, folder, transformers.Seq2SeqTrainingArguments, per_device_train_batch_size=run.batch(3, 10),
                                   remove_unused_columns=False, label_names=["labels"]),
            train_dataset=Sounds(run.steps * run.batch(3, 10), 2 * places, vocabulary, most),
            data_collator=Collator(texts.tokenizer(vocabulary)), callbacks=run.callbacks()))
