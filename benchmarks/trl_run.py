"""GRPO with TRL on the edit menu, on one device or several; goes on from the last checkpoint in its folder.

    python benchmarks/trl_run.py MODEL FOLDER [STEPS]
    accelerate launch --num_processes 4 benchmarks/trl_run.py MODEL FOLDER [STEPS]

MODEL: 'tiny', or a folder or name for `arl.load_model`. Appendix C, section "The first hour on a GPU".
"""
import math, os, sys
from pathlib import Path

import torch

import agentrl as arl


def main(name, folder, steps='60'):
    gpu, processes = torch.cuda.is_available(), int(os.environ.get('WORLD_SIZE', 1))
    if gpu: torch.cuda.set_device(int(os.environ.get('LOCAL_RANK', 0)))              # before the model is loaded: each process has its own
    cfg = arl.llm_config(name, steps=int(steps))
    model, tok, full_name = arl.load_model(cfg.model, cfg.seed)
    rows = arl.episode_rows(arl.menu_experiment(), cfg, range(cfg.steps * cfg.prompts))
    micro = math.gcd(cfg.micro, cfg.prompts * cfg.group_size // processes)
    config = arl.trl_config(cfg, folder, processes, micro, bf16=gpu)
    trainer = arl.trl_trainer(model, tok, rows, config, arl.ChatFormat(tok, full_name), cfg)
    trainer.train(resume_from_checkpoint=any(Path(folder).glob('checkpoint-*')) or None)
    trainer.save_model(str(Path(folder) / 'final'))                                  # a folder that `arl.load_model` takes


if __name__ == '__main__':
    main(*sys.argv[1:]) if len(sys.argv) > 2 else sys.exit(__doc__)
