"""Trains GPT-2 with PyTorch on a GPU from the weights and batches that TestCurve
wrote, and prints a loss for each step: python3 curve_step.py DIR float32|bfloat16
"""

import json
import sys

import torch
from safetensors.torch import load_file

from gpu_step import GPT

dir, precision = sys.argv[1:]
with open(dir + "/curve.json") as f:
    o = json.load(f)
torch.backends.cuda.matmul.allow_tf32 = False
model = GPT(o["layers"], o["heads"], o["width"], False, seq=o["context"])
state = {}
for name, w in load_file(dir + "/model.safetensors").items():
    name = name.removeprefix("transformer.").replace("attn.c_", "c_").replace("mlp.c_fc", "c_fc").replace("mlp.c_proj", "c_down")
    linear = name.endswith(".weight") and ".c_" in name  # Hugging Face keeps these as [in, out]
    state[name] = w.t().contiguous() if linear else w
model.load_state_dict(state)
model.cuda()
opt = torch.optim.AdamW(model.parameters(), lr=o["rate"], betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0, fused=True)
tokens = torch.frombuffer(bytearray(open(dir + "/batches.bin", "rb").read()), dtype=torch.int32).long()
for step, batch in enumerate(tokens.view(-1, 2, o["batch"], o["seq"]).cuda()):
    opt.param_groups[0]["lr"] = o["rate"] * min(1, (step + 1) / o["warmup"])
    with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bfloat16"):
        loss = model(batch[0], batch[1])
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad(set_to_none=True)
    print(loss.item())
