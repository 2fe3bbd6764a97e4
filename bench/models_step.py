"""Trains BERT-base (masked words) or ResNet-18 for some steps on random data
and prints the seconds of each, then the peak of resident memory:

    python3 models_step.py bert|resnet STEPS THREADS
"""

import resource
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

V, C, H, L, T = 30522, 768, 12, 12, 512  # BERT-base


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.up, self.down = nn.Linear(C, 4 * C), nn.Linear(4 * C, C)
        self.ln_1, self.ln_2 = nn.LayerNorm(C, eps=1e-12), nn.LayerNorm(C, eps=1e-12)

    def attend(self, x, mask):
        b, t, _ = x.shape
        q, k, v = (u.view(b, t, H, C // H).transpose(1, 2) for u in self.qkv(x).split(C, dim=2))
        p = (q @ k.transpose(2, 3)) * (C // H) ** -0.5 + mask
        p = F.dropout(p.softmax(-1), 0.1, self.training)
        return self.out((p @ v).transpose(1, 2).reshape(b, t, C))

    def forward(self, x, mask):
        x = self.ln_1(x + F.dropout(self.attend(x, mask), 0.1, self.training))
        return self.ln_2(x + F.dropout(self.down(F.gelu(self.up(x))), 0.1, self.training))


class BERT(nn.Module):
    def __init__(self):
        super().__init__()
        self.word, self.place, self.kind = nn.Embedding(V, C), nn.Embedding(T, C), nn.Embedding(2, C)
        self.ln = nn.LayerNorm(C, eps=1e-12)
        self.layers = nn.ModuleList(Layer() for _ in range(L))
        self.dense, self.head_ln, self.bias = nn.Linear(C, C), nn.LayerNorm(C, eps=1e-12), nn.Parameter(torch.zeros(V))

    def loss(self, tokens, labels):
        mask = torch.zeros(tokens.shape[0], 1, 1, tokens.shape[1])
        x = self.word(tokens) + self.place.weight[: tokens.shape[1]] + self.kind.weight[0]
        x = F.dropout(self.ln(x), 0.1, self.training)
        for layer in self.layers:
            x = layer(x, mask)
        x = self.head_ln(F.gelu(self.dense(x)))
        return F.cross_entropy(F.linear(x, self.word.weight, self.bias).view(-1, V), labels.view(-1))


class Block(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b)
        self.conv2, self.bn2 = nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b)
        self.skip = None
        if stride > 1 or a != b:
            self.skip = nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)), inplace=True)))
        return F.relu(y + (x if self.skip is None else self.skip(x)), inplace=True)


class ResNet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
        self.blocks = nn.Sequential(*(Block(*w) for w in widths))
        self.fc = nn.Linear(512, 1000)

    def loss(self, images, labels):
        return F.cross_entropy(self.fc(self.blocks(self.stem(images)).mean((2, 3))), labels)


def main(name, steps, threads):
    torch.manual_seed(1)
    torch.set_num_threads(threads)
    model = BERT() if name == "bert" else ResNet18()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(steps):
        if name == "bert":
            data = torch.randint(V, (4, 128)), torch.randint(V, (4, 128))
        else:
            data = torch.rand(16, 3, 64, 64), torch.randint(1000, (16,))
        start = time.perf_counter()
        loss = model.loss(*data)
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        loss.item()
        print(time.perf_counter() - start, flush=True)
    print("maxrss", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


main(sys.argv[1], *map(int, sys.argv[2:]))
