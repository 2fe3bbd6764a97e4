"""Writes bert_tiny.safetensors: a small BERT with Hugging Face's names, some
first gradients, and the losses and gradient norms of 12 steps of each of its
two heads, without dropout. Needs PyTorch alone: python3 bert.py."""

import json
import struct

import torch
import torch.nn.functional as F

VOCAB, WIDTH, LAYERS, HEADS, HIDDEN, CONTEXT, TYPES, CLASSES = 61, 32, 2, 4, 64, 16, 2, 3
EPS = 1e-12


def linear(w, name, x):
    return F.linear(x, w[name + ".weight"], w[name + ".bias"])


def norm(w, name, x):
    return F.layer_norm(x, (WIDTH,), w[name + ".weight"], w[name + ".bias"], EPS)


def encode(w, ids, types, mask):
    at = "bert.embeddings."
    x = w[at + "word_embeddings.weight"][ids] + w[at + "token_type_embeddings.weight"][types]
    x = norm(w, at + "LayerNorm", x + w[at + "position_embeddings.weight"][: ids.shape[1]])
    hidden = (1 - mask[:, None, None, :].float()) * torch.finfo(torch.float32).min
    for i in range(LAYERS):
        at = f"bert.encoder.layer.{i}."
        q, k, v = (
            linear(w, at + "attention.self." + n, x).view(*ids.shape, HEADS, -1).transpose(1, 2)
            for n in ("query", "key", "value")
        )
        p = (q @ k.transpose(2, 3) / (WIDTH // HEADS) ** 0.5 + hidden).softmax(-1)
        a = (p @ v).transpose(1, 2).reshape(*ids.shape, WIDTH)
        x = norm(w, at + "attention.output.LayerNorm", x + linear(w, at + "attention.output.dense", a))
        up = F.gelu(linear(w, at + "intermediate.dense", x))
        x = norm(w, at + "output.LayerNorm", x + linear(w, at + "output.dense", up))
    return x


def masked_loss(w, b):
    h = encode(w, b["input_ids"], b["token_type_ids"], b["attention_mask"])
    h = norm(w, "cls.predictions.transform.LayerNorm", F.gelu(linear(w, "cls.predictions.transform.dense", h)))
    logits = F.linear(h, w["bert.embeddings.word_embeddings.weight"], w["cls.predictions.bias"])
    return F.cross_entropy(logits.view(-1, VOCAB), b["labels"].view(-1), ignore_index=-100)


def class_loss(w, b):
    h = encode(w, b["input_ids"], b["token_type_ids"], b["attention_mask"])
    pooled = torch.tanh(linear(w, "bert.pooler.dense", h[:, 0]))
    return F.cross_entropy(linear(w, "classifier", pooled), b["classes"])


def weights():
    shapes = {
        "bert.embeddings.word_embeddings.weight": (VOCAB, WIDTH),
        "bert.embeddings.position_embeddings.weight": (CONTEXT, WIDTH),
        "bert.embeddings.token_type_embeddings.weight": (TYPES, WIDTH),
    }
    dense = [("bert.pooler.dense", WIDTH, WIDTH), ("classifier", CLASSES, WIDTH), ("cls.predictions.transform.dense", WIDTH, WIDTH)]
    norms = ["bert.embeddings.LayerNorm", "cls.predictions.transform.LayerNorm"]
    for i in range(LAYERS):
        at = f"bert.encoder.layer.{i}."
        dense += [(at + "attention.self." + n, WIDTH, WIDTH) for n in ("query", "key", "value")]
        dense += [(at + "attention.output.dense", WIDTH, WIDTH), (at + "intermediate.dense", HIDDEN, WIDTH), (at + "output.dense", WIDTH, HIDDEN)]
        norms += [at + "attention.output.LayerNorm", at + "output.LayerNorm"]
    for name, out, width in dense:
        shapes[name + ".weight"], shapes[name + ".bias"] = (out, width), (out,)
    w = {name: 0.2 * torch.randn(shape) for name, shape in shapes.items()}
    for name in norms:
        w[name + ".weight"], w[name + ".bias"] = 1 + 0.1 * torch.randn(WIDTH), 0.1 * torch.randn(WIDTH)
    w["cls.predictions.bias"] = 0.1 * torch.randn(VOCAB)
    return w


def batch():
    ids = torch.randint(VOCAB, (3, 12))
    mask = (torch.arange(12)[None] < torch.tensor([12, 7, 10])[:, None]).long()
    labels = torch.where((torch.rand(3, 12) < 0.4) & (mask == 1), torch.randint(VOCAB, (3, 12)), torch.tensor(-100))
    types = ((torch.arange(12)[None] >= torch.tensor([6, 4, 9])[:, None]) & (mask == 1)).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": labels, "token_type_ids": types, "classes": torch.randint(CLASSES, (3,))}


def follow(start, batches, loss_of, out, name):
    w = {k: v.clone().requires_grad_() for k, v in start.items()}
    opt = torch.optim.AdamW(w.values(), lr=2e-3)
    losses, norms = [], []
    for step in range(12):
        opt.zero_grad(set_to_none=True)
        loss = loss_of(w, batches[step % 2])
        loss.backward()
        grads = {k: v.grad for k, v in w.items() if v.grad is not None}
        if step == 0:
            out.update({f"{name}.grad.{k}": g.clone() for k, g in grads.items() if "key.bias" not in k})  # whose gradient is 0 but for rounding
        losses.append(loss.item())
        norms.append(sum(g.double().pow(2).sum() for g in grads.values()).sqrt().item())
        opt.step()
    out[f"{name}.losses"], out[f"{name}.grad_norms"] = torch.tensor(losses), torch.tensor(norms)


def write(path, tensors):
    header, data = {}, b""
    for name, t in tensors.items():
        raw = t.detach().contiguous().numpy().tobytes()
        kind = {torch.float32: "F32", torch.int64: "I64"}[t.dtype]
        header[name] = {"dtype": kind, "shape": list(t.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def main():
    torch.manual_seed(7)
    out = weights()
    start = dict(out)
    batches = [batch(), batch()]
    for i, b in enumerate(batches):
        out.update({f"input.{i}.{k}": v for k, v in b.items()})
    follow(start, batches, masked_loss, out, "masked")
    follow(start, batches, class_loss, out, "class")
    write("bert_tiny.safetensors", out)


main()
