"""Trains a model with PyTorch on a GPU and prints one line of JSON: the median
seconds of a step, its samples or tokens a second, and the peaks of memory.

    python3 gpu_step.py MODEL --batch N [--seq N] [--amp] [--compile] [--checkpoint] [--steps N] [--largest BYTES]

MODEL: gpt2, gpt2-xl, bert-large or resnet152. Attention is PyTorch's fused one,
images are channels_last, the optimizer is the fused AdamW (SGD for ResNet). With
--largest the batch is the largest that fits into so many bytes of the allocator.
"""

import argparse
import gc
import json
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

GPT2 = {"gpt2": (12, 12, 768), "gpt2-xl": (48, 25, 1600)}
VOCAB = {"gpt2": 50257, "gpt2-xl": 50257, "bert-large": 30522}


def attend(qkv, heads, causal, dropout=0.0):
    b, t, c = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    q, k, v = (u.view(b, t, heads, c // heads).transpose(1, 2) for u in qkv.split(c, dim=2))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=causal, dropout_p=dropout)
    return y.transpose(1, 2).reshape(b, t, c)


class GPTBlock(nn.Module):
    def __init__(self, c, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(c), nn.LayerNorm(c)
        self.c_attn, self.c_proj = nn.Linear(c, 3 * c), nn.Linear(c, c)
        self.c_fc, self.c_down = nn.Linear(c, 4 * c), nn.Linear(4 * c, c)

    def forward(self, x):
        x = x + self.c_proj(attend(self.c_attn(self.ln_1(x)), self.heads, True))
        return x + self.c_down(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, layers, heads, c, recompute, seq=1024):
        super().__init__()
        self.recompute = recompute
        self.wte, self.wpe = nn.Embedding(VOCAB["gpt2"], c), nn.Embedding(seq, c)
        self.h = nn.ModuleList(GPTBlock(c, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(c)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


class BERTLayer(nn.Module):
    def __init__(self, c, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(c, c) for _ in range(4))
        self.up, self.down = nn.Linear(c, 4 * c), nn.Linear(4 * c, c)
        self.ln_1, self.ln_2 = nn.LayerNorm(c, eps=1e-12), nn.LayerNorm(c, eps=1e-12)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (f(x).view(b, t, self.heads, c // self.heads).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)
        x = self.ln_1(x + F.dropout(self.out(y.transpose(1, 2).reshape(b, t, c)), 0.1))
        return self.ln_2(x + F.dropout(self.down(F.gelu(self.up(x))), 0.1))


class BERT(nn.Module):
    def __init__(self, layers, heads, c, recompute):
        super().__init__()
        self.recompute, v = recompute, VOCAB["bert-large"]
        self.word, self.place, self.kind = nn.Embedding(v, c), nn.Embedding(512, c), nn.Embedding(2, c)
        self.ln = nn.LayerNorm(c, eps=1e-12)
        self.layers = nn.ModuleList(BERTLayer(c, heads) for _ in range(layers))
        self.dense, self.head_ln, self.bias = nn.Linear(c, c), nn.LayerNorm(c, eps=1e-12), nn.Parameter(torch.zeros(v))

    def forward(self, tokens, labels):
        x = self.word(tokens) + self.place.weight[: tokens.shape[1]] + self.kind.weight[0]
        x = F.dropout(self.ln(x), 0.1)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        x = self.head_ln(F.gelu(self.dense(x)))
        logits = F.linear(x, self.word.weight, self.bias)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1), ignore_index=-100)


class Bottleneck(nn.Module):
    def __init__(self, a, mid, stride):
        super().__init__()
        b = 4 * mid
        self.conv1, self.bn1 = nn.Conv2d(a, mid, 1, bias=False), nn.BatchNorm2d(mid)
        self.conv2, self.bn2 = nn.Conv2d(mid, mid, 3, stride, 1, bias=False), nn.BatchNorm2d(mid)
        self.conv3, self.bn3 = nn.Conv2d(mid, b, 1, bias=False), nn.BatchNorm2d(b)
        self.skip = None
        if stride > 1 or a != b:
            self.skip = nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn3(self.conv3(F.relu(self.bn2(self.conv2(y)), inplace=True)))
        return F.relu(y + (x if self.skip is None else self.skip(x)), inplace=True)


class ResNet(nn.Module):
    def __init__(self, depths, recompute):
        super().__init__()
        self.recompute = recompute
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        blocks, a = [], 64
        for stage, depth in enumerate(depths):
            for i in range(depth):
                blocks.append(Bottleneck(a, 64 << stage, 2 if stage and i == 0 else 1))
                a = 256 << stage
        self.blocks, self.fc = nn.ModuleList(blocks), nn.Linear(a, 1000)

    def forward(self, images, labels):
        x = self.stem(images)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return F.cross_entropy(self.fc(x.mean((2, 3))), labels)


def build(o):
    if o.model in GPT2:
        return GPT(*GPT2[o.model], o.checkpoint)
    if o.model == "bert-large":
        return BERT(24, 16, 1024, o.checkpoint)
    return ResNet((3, 8, 36, 3), o.checkpoint)


def batch(o):
    if o.model == "resnet152":
        x = torch.rand(o.batch, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
        return x, torch.randint(1000, (o.batch,), device="cuda")
    x = torch.randint(VOCAB[o.model], (o.batch, o.seq), device="cuda")
    if o.model == "bert-large":  # 15 % of the words are to be guessed
        return x, torch.where(torch.rand(x.shape, device="cuda") < 0.15, x, -100)
    return x, torch.roll(x, -1, 1)


def optimizer(o, model):
    if o.model == "resnet152":
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    return torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


def step(o, model, opt, data):
    with torch.autocast("cuda", torch.bfloat16, enabled=o.amp):
        loss = model(*data)
    loss.backward()
    if o.model != "resnet152":
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad(set_to_none=True)
    return loss


def measure(o):
    model = build(o).cuda()
    if o.model == "resnet152":
        model = model.to(memory_format=torch.channels_last)
    run = torch.compile(model) if o.compile else model
    opt, data, times = optimizer(o, model), batch(o), []
    for i in range(o.steps + 5):
        if i == 5:
            torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        start = time.perf_counter()
        step(o, run, opt, data)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    t = statistics.median(times[5:])
    return {
        "batch": o.batch,
        "seconds": t,
        "per_second": data[1].numel() / t,
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
    }


def fits(o, n, model, opt):
    """Whether two steps of n samples fit. What a failed one leaves is given back."""
    o.batch = n
    try:
        for _ in range(2):
            step(o, model, opt, batch(o))
        ok = True
    except torch.cuda.OutOfMemoryError:
        ok = False
    opt.zero_grad(set_to_none=True)
    gc.collect()
    torch.cuda.empty_cache()
    return ok


def find_largest(o):
    """Sets the batch to the largest that fits, found by doubling and halving the interval."""
    torch.cuda.set_per_process_memory_fraction(o.largest / torch.cuda.get_device_properties(0).total_memory)
    model = build(o).cuda()
    opt, low, high = optimizer(o, model), 0, 1
    while fits(o, high, model, opt):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if fits(o, middle, model, opt):
            low = middle
        else:
            high = middle
    o.batch = low


def measure_largest(o):
    find_largest(o)
    gc.collect()
    torch.cuda.empty_cache()
    while o.batch > 0:
        try:
            return measure(o)
        except torch.cuda.OutOfMemoryError:  # more steps than two were tried
            o.batch -= 1
        gc.collect()
        torch.cuda.empty_cache()
    return {"out_of_memory": "not even one sample fits"}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model", choices=[*GPT2, "bert-large", "resnet152"])
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--seq", type=int, default=1024)
    p.add_argument("--steps", type=int, default=15)
    p.add_argument("--largest", type=int, default=0)
    for flag in ("amp", "compile", "checkpoint"):
        p.add_argument("--" + flag, action="store_true")
    o = p.parse_args()
    torch.manual_seed(1)
    torch.backends.cudnn.benchmark = True
    try:
        print(json.dumps(measure_largest(o) if o.largest else measure(o)))
    except torch.cuda.OutOfMemoryError as e:
        print(json.dumps({"out_of_memory": str(e).splitlines()[0]}))


if __name__ == "__main__":
    main()
