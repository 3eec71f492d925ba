"""The same multi-turn work through TRL's `GRPOTrainer`: same weights, prompts, replies, turns and tokens.

`TinyAgent` is a Llama in all but the order of its rotary channels, so its weights move into a `LlamaForCausalLM` that
gives the same logits. TRL then plays the same gym through its own tool loop, and `benchmarks/run.py` compares the CPU time.
"""
import os, random, tempfile, time, warnings
from collections import Counter

os.environ |= {'HF_HUB_OFFLINE': '1', 'TRL_EXPERIMENTAL_SILENCE': '1', 'TRANSFORMERS_VERBOSITY': 'error',
               'HF_DATASETS_DISABLE_PROGRESS_BARS': '1'}
import tokenizers
import torch
import transformers
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

import agentrl as arl

TEMPLATE = ("{% for m in messages %}{% if m['role'] == 'assistant' %}"
            "{% if m['tool_calls'] %}{% for c in m['tool_calls'] %}<call> {{ c['function']['name'] }} "
            "{{ c['function']['arguments'] | tojson }} </call> {% endfor %}{% else %}{{ m['content'] }} {% endif %}"
            "{% else %}<obs> {{ m['content'] }} </obs> {% endif %}{% endfor %}")


class CallTokenizer(transformers.PreTrainedTokenizerFast):
    """The book's tokenizer as one of transformers, with a parser that hands every call but `submit` to the one tool."""
    response_template = {}

    def parse_response(self, response, **_):
        text = ' '.join(self.convert_ids_to_tokens(response))
        message = {'role': 'assistant', 'content': text}
        if arl.parse_call(text) == ('submit', None): return message                 # no tool call: TRL's loop ends here
        return message | {'tool_calls': [{'type': 'function', 'function': {'name': 'act', 'arguments': {'text': text}}}]}


def hf_tokenizer(tok):
    """`tok` with the same ids; text is split at spaces, and a line break is a word."""
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(tok.ids, unk_token='<unk>'))
    split = tokenizers.pre_tokenizers.Split
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split(' ', 'removed'), split('\n', 'isolated')])
    hf = CallTokenizer(tokenizer_object=inner, pad_token='<pad>', unk_token='<unk>', eos_token='</call>')
    hf.chat_template, hf.response_template = TEMPLATE, {'parser': 'CallTokenizer.parse_response'}
    return hf


def hf_model(model, tok):
    """A `LlamaForCausalLM` with the weights of `model`: rotary pairs (2j, 2j + 1) move to (j, j + D/2)."""
    width, heads, D = model.embed.embedding_dim, model.n_heads, model.head_dim
    config = transformers.LlamaConfig(
        vocab_size=len(tok), hidden_size=width, intermediate_size=model.blocks[0].down.in_features,
        num_hidden_layers=len(model.blocks), num_attention_heads=heads, max_position_embeddings=1024, rms_norm_eps=2**-23,
        tie_word_embeddings=True, pad_token_id=tok.pad_id, eos_token_id=tok.end_call_id, bos_token_id=None)
    hf = transformers.LlamaForCausalLM(config)
    order = torch.cat([torch.arange(0, D, 2), torch.arange(1, D, 2)])
    state = {'model.embed_tokens.weight': model.embed.weight, 'model.norm.weight': model.norm.weight}
    for i, block in enumerate(model.blocks):
        q, k, v = block.qkv.weight.unflatten(0, (3, heads, D)).unbind(0)
        gate, up = block.gate_up.weight.chunk(2)
        names = {'self_attn.q_proj': q[:, order].flatten(0, 1), 'self_attn.k_proj': k[:, order].flatten(0, 1),
                 'self_attn.v_proj': v.flatten(0, 1), 'self_attn.o_proj': block.out.weight, 'mlp.gate_proj': gate,
                 'mlp.up_proj': up, 'mlp.down_proj': block.down.weight, 'input_layernorm': block.norm1.weight,
                 'post_attention_layernorm': block.norm2.weight}
        state |= {f'model.layers.{i}.{name}.weight': w for name, w in names.items()}
    missing, unexpected = hf.load_state_dict({k: v.detach().clone() for k, v in state.items()}, strict=False)
    assert not unexpected and set(missing) <= {'lm_head.weight'}, (missing, unexpected)
    return hf


def tools(cfg, tasks, seed=0):
    """An environment class for TRL's `environment_factory`: the gym of `cfg` behind one tool."""
    rng = random.Random(seed)

    class GymTools:
        def reset(self, task, **_):
            task = tasks[task]
            self._env = arl.make_env(cfg)
            return self._env.reset(arl.randomize_names(task, rng) if cfg.rename else task)

        def act(self, text: str) -> str:
            """Carries out a call.

            Args:
                text: The call as written.
            """
            return self._env.step(text)[0]
    return GymTools


def reward(completions, environments, **_):
    """What the gym pays for each episode: 0 unless its last message is a submit."""
    return [env._env.step(messages[-1]['content'])[1] if 'tool_calls' not in messages[-1] and not env._env.done else 0.0
            for messages, env in zip(completions, environments)]


class Clock(transformers.TrainerCallback):
    """CPU seconds of each of TRL's steps (one generation, `minibatches` updates), and of `between()`, run after each."""
    def __init__(self, minibatches, parts, between):
        self.minibatches, self.parts, self.between, self.seconds = minibatches, parts, between, []

    def on_train_begin(self, *args, **kwargs):
        self.start = time.process_time()

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step % self.minibatches: return
        self.seconds.append(time.process_time() - self.start)
        if len(self.seconds) == 1: self.parts.clear()                               # the first step warms up
        self.between()
        self.start = time.process_time()


def timed(owner, name, parts, label):
    """Replaces `owner.name` by itself plus a clock that adds to `parts[label]`."""
    inner = getattr(owner, name)
    def outer(*args, **kwargs):
        start = time.process_time()
        try: return inner(*args, **kwargs)
        finally: parts[label] += time.process_time() - start
    setattr(owner, name, outer)


def settings(cfg, steps, folder):
    """TRL's settings for the work of `cfg`, everything else off."""
    episodes = cfg.group_size * cfg.prompts_per_step
    return GRPOConfig(
        output_dir=folder, use_cpu=True, bf16=False, gradient_checkpointing=False, use_vllm=False, report_to='none',
        logging_strategy='no', save_strategy='no', eval_strategy='no', disable_tqdm=True, dataloader_pin_memory=False,
        per_device_train_batch_size=episodes // cfg.minibatches, steps_per_generation=cfg.minibatches,
        gradient_accumulation_steps=1, num_generations=cfg.group_size, num_iterations=cfg.epochs,
        max_steps=steps * cfg.minibatches, max_tool_calling_iterations=cfg.max_turns - 1, max_completion_length=512,
        generation_kwargs={'max_new_tokens': arl.MAX_CALL_TOKENS}, temperature=cfg.temperature, top_p=1.0, top_k=0,
        learning_rate=cfg.lr, lr_scheduler_type='constant', optim='adamw_torch_fused', weight_decay=0.0, adam_beta2=0.999,
        max_grad_norm=cfg.max_grad_norm, beta=0.0, epsilon=cfg.clip_low, epsilon_high=cfg.clip_high, loss_type='dapo',
        scale_rewards='group', seed=cfg.seed)


def measure(model, tasks, tok, cfg, steps, between):
    """Runs `steps` steps of TRL from the weights of `model` -> (CPU seconds a step, seconds a step by part, work a step).

    `between()` runs after each step, off the clock. The first step warms up and is dropped.
    """
    hf, parts, work, generations = hf_model(model, tok), Counter(), Counter(), []
    ids = torch.randint(6, len(tok), (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(): gap = (hf(ids).logits - model(ids)).abs().max().item()
    assert gap < 1e-3, f'the converted model differs by {gap}'
    data = Dataset.from_list([{'prompt': [{'role': 'user', 'content': ''}], 'task': i} for i in range(len(tasks))] * 8)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter('ignore')
        clock = Clock(cfg.minibatches, parts, between)
        trainer = GRPOTrainer(hf, reward, settings(cfg, steps + 1, folder), data, processing_class=hf_tokenizer(tok),
                              environment_factory=tools(cfg, tasks), callbacks=[clock])
        generate = trainer._generate
        def counted(prompts):
            out = generate(prompts)
            generations.append(out)
            return out
        trainer._generate = counted
        timed(trainer, '_generate', parts, 'rollout')
        timed(trainer.model, 'generate', parts, 'rollout: model.generate')
        timed(trainer, '_get_tool_suffix_ids', parts, 'rollout: chat template')
        timed(trainer, '_generate_and_score_completions', parts, 'rollout and scoring')
        timed(trainer, 'training_step', parts, 'training_step')
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    for prompts, completions, masks, messages, *_ in generations[1:]:
        work['tokens'] += sum(map(len, prompts)) + sum(map(len, completions))
        work['own tokens'] += sum(map(sum, masks))
        work['turns'] += sum(m['role'] == 'assistant' for each in messages for m in each)
        work['episodes'] += len(prompts)
    seconds = clock.seconds[1:]
    n = len(seconds)
    parts = {'rollout': parts['rollout'], 'of it model.generate': parts['rollout: model.generate'],
             'of it chat template of replies': parts['rollout: chat template'],
             'old log-probs, rewards': parts['rollout and scoring'] - parts['rollout'],
             'loss and backward': parts['training_step'] - parts['rollout and scoring'],
             'optimizer and trainer': sum(seconds) - parts['training_step']}
    return seconds, {k: v / n for k, v in parts.items()}, {k: v / n for k, v in work.items()}
