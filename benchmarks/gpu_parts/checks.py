"""Checks: kernels against references, the executor against torch's, picks against the host's, and equal texts."""

from functools import partial
from typing import Any

import numpy as np
import torch

from gpu_parts.bench import Bench, answer_all, compared


def kernels(bench: Bench) -> dict[str, Any]:
    """Attention over everything at once against PyTorch's, and products against PyTorch's; largest differences."""
    from paceline.models.cuda_executor.attention import attention_over, rows_of_tile
    from paceline.models.cuda_executor.invariant import row_invariant
    from paceline.models.cuda_executor.staging import Staging
    from paceline.models.torch_executor.attention import AttentionForm, SegmentAttention
    from paceline.models.torch_executor.cache import segment_views

    config, found = bench.checkpoint.config, {}
    rows, slots = _mixed(40 if bench.quick else 1500)
    for dtype in (torch.float32,) if bench.quick else (torch.float32, torch.bfloat16):
        query = _random(bench, dtype, len(rows.token_ids), config.num_attention_heads, config.head_dim)
        keys, values = (_random(bench, dtype, slots, config.num_key_value_heads, config.head_dim) for _ in range(2))
        tile = rows_of_tile(bench.attention, config.num_attention_heads // config.num_key_value_heads)  # type: ignore
        from paceline.models.cuda_executor.paged_rows import num_splits

        placed = Staging(config, bench.on).place(rows, slots - 1, tile, num_splits(rows))
        padded = torch.cat([query, query.new_zeros(len(placed.token_ids) - len(query), *query.shape[1:])])
        attend = attention_over(bench.attention, placed)  # type: ignore
        for name, form in (("plain", AttentionForm(0.1)), ("window", AttentionForm(0.1, window=33)),
                           ("cap", AttentionForm(0.1, cap=5.0))):  # fmt: skip
            views = segment_views(rows, bench.on, (form.window,))
            want = SegmentAttention(views)(query.float(), keys.float(), values.float(), form)
            with bench.current():
                ours = attend(padded, keys, values, form)[: len(query)]
            found[f"attention_{name}_{dtype}"] = float((ours.float() - want).abs().max())
    found |= _blocks(bench)
    x, weight = (_random(bench, torch.float32, count, config.hidden_size) for count in (5, 64))
    with bench.current(), row_invariant(bench.on):
        product = torch.nn.functional.linear(x, weight)
    found["product"] = float((product - x @ weight.T).abs().max())
    return found


def parity(bench: Bench) -> dict[str, Any]:
    """The executor against the torch executor in float32 on the same rows, in two chunks of a text."""
    return {"positions": len(bench.text), **compared(bench.logits_of(bench.model, bench.text), bench.reference)}


def row_invariance(bench: Bench) -> dict[str, Any]:
    """Whether a row's logits are bitwise the same alone, in a chunk and in a tree, as users get them and exact."""
    from paceline.models.rows import Part, build_rows

    text, found = bench.prompts(1, 40)[0], {}
    for name, model in (("default", bench.model), ("deterministic", bench.exact)):
        cache, pages, other = model.new_cache(8), (3, 0, 5, 1), Part((7, 6), 0, text[:5])
        model.forward(build_rows([Part(pages, 0, text[:37])]), cache)
        tree = Part(pages, 37, [text[37], text[38], 1, text[39], 2], (-1, 0, 0, 1, 2))
        in_tree = model.forward(build_rows([other, tree]), cache).logits[5 + 3]
        in_chunk = model.forward(build_rows([Part(pages, 37, text[37:])]), cache).logits[2]
        alone = model.forward(build_rows([Part(pages, 39, text[39:])]), cache).logits[0]
        found[name] = {
            "chunk_is_bitwise": bool(np.array_equal(in_chunk, alone)),
            "tree_is_bitwise": bool(np.array_equal(in_tree, alone)),
            "largest_difference": float(max(np.abs(in_chunk - alone).max(), np.abs(in_tree - alone).max())),
        }
    return found | {"graphs_outlive_others": _graphs_outlive_others(bench, text)}


def _graphs_outlive_others(bench: Bench, text: list[int]) -> bool:
    """Whether a pass says the same after the graphs of another cache were freed and further ones were recorded.

    Its rows are multiplied by cuBLAS, whose workspace is among what graphs share.
    """
    from paceline.models.rows import Part, build_rows

    model, pages = bench.model, (0, 1, 2)
    cache, other = model.new_cache(8), model.new_cache(8)
    rows = build_rows([Part(pages, 0, (2 * text)[:48])])
    before = model.forward(rows, cache).logits.copy()
    model.forward(rows, other)
    del other
    for size in (1, 2):
        model.forward(build_rows([Part(pages, 0, text[:size])]), cache)
    torch.empty(1 << 26, device=bench.on).fill_(1e9)  # takes memory that was given back
    return bool(np.array_equal(model.forward(rows, cache).logits, before))


def _blocks(bench: Bench) -> dict[str, float]:
    """Products with weights in blocks of 4 and 8 bits: errors relative to the product with the widened matrix."""
    from paceline.models.cuda_executor.block_layers import times

    found = {}
    for bits in (4, 8):
        matrix = random_blocks(bench, bits, 64 if bench.quick else 1536, bench.checkpoint.config.hidden_size)
        x = _random(bench, getattr(torch, bench.dtype), 5, matrix.shape[1])
        want = x.float() @ matrix.dense().T
        with bench.current():
            found[f"blocks_of_{bits}_bits"] = float((times(matrix, x).float() - want).norm() / want.norm())
    return found


def random_blocks(bench: Bench, bits: int, outputs: int, inputs: int) -> Any:
    """A `BlockMatrix` of random codes whose 32 neighbours share a scale, as Q4_0 and Q8_0 have them."""
    from paceline.models.cuda_executor.block_matrix import BlockMatrix

    on, halves = bench.on, bits == 4
    make, size = torch.Generator(on).manual_seed(bits), (outputs, inputs // 2 if halves else inputs)
    codes = torch.randint(0, 256, size, generator=make, dtype=torch.uint8, device=on)
    scales = (torch.rand(outputs, inputs // 32, generator=make, device=on) + 0.5).half() / 2**bits
    return BlockMatrix(codes, scales * inputs**-0.5, None, None, 32, 1 << (bits - 1), halves)


def model_in_blocks(bench: Bench, bits: int) -> Any:
    """A `CudaModel` of the shape that is measured, its matrices random blocks of 4 or 8 bits, made on the device."""
    from paceline.models.cuda_executor import CudaModel
    from paceline.models.cuda_executor.block_layers import replace_matrices
    from paceline.models.torch_executor.model import Stage

    def prepare(stack: Any) -> int:
        def of(path: str, layer: Any) -> Any:
            return random_blocks(bench, bits, *layer.weight.shape)

        return replace_matrices(stack, of, getattr(torch, bench.dtype), in_one_order=False)

    class InBlocks(CudaModel):
        def _load(self, checkpoint: Any, device: str) -> Any:
            return Stage(checkpoint, device, bench.dtype, prepare=prepare)

    return InBlocks(bench.checkpoint, bench.device, bench.dtype, attention=bench.attention)  # type: ignore[arg-type]


def draws(bench: Bench) -> dict[str, Any]:
    """Picks of sampled rows on the device against the host's over the same logits, and the noise bit for bit."""
    from paceline.models.cuda_executor.laws import Wide, answers_of, peaks_of, read_answers
    from paceline.models.cuda_executor.laws.noise import exponentials, words
    from paceline.sampling import CounterRandomness, Warper
    from paceline.sampling.answered import question_about
    from paceline.types import SamplingParams

    noise, size = CounterRandomness(3), bench.checkpoint.config.vocab_size
    settings = ({"temperature": 0}, {"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.9},
                {"temperature": 1.2, "top_k": 40, "min_p": 0.01})  # fmt: skip
    warpers = [Warper(SamplingParams(**values)) for values in settings for _ in range(4 if bench.quick else 16)]
    logits = 3 * _random(bench, torch.float32, len(warpers), size)
    questions = [question_about(each, (), noise.key(i, "target", -1)) for i, each in enumerate(warpers)]
    race = None
    if bench.attention == "triton":
        from paceline.models.cuda_executor.kernels.races import race

    def answered(asked: Any) -> Any:
        wide = Wide.of(asked, size, lambda values: torch.from_numpy(values).to(bench.on))
        kept = logits[: len(asked)]
        with bench.current():
            table = answers_of(kept, peaks_of(kept), wide, race)
        return read_answers(table.cpu().numpy(), asked)

    answers = answered(questions[: len(questions) // 2]) + answered(questions)[len(questions) // 2 :]
    on_host = logits.cpu().numpy()
    same = [
        answer is not None and answer.pick == noise.draw(warper.law(row), i, "target")
        for i, (answer, warper, row) in enumerate(zip(answers, warpers, on_host, strict=True))
    ]
    key = noise.key(9, "target", -1)
    ours = (
        exponentials(torch.from_numpy(words([key])).to(bench.on), torch.arange(size, device=bench.on))[0].cpu().numpy()
    )
    theirs = noise.exponentials(np.arange(size), 9, "target")
    return {
        "rows": len(same),
        "same_picks": float(np.mean(same)),
        "largest_relative_difference_of_noise": float(np.max(np.abs(ours / theirs - 1))),
        "milliseconds": _cut_draws(bench, logits, noise),
    }


def _cut_draws(bench: Bench, logits: Any, noise: Any) -> dict[str, dict[str, float]]:
    """Times of draws from laws that top_k and top_p cut, by rows: with a sorted vocabulary, and without."""
    from paceline.models.cuda_executor.laws import Wide, answers_of, peaks_of
    from paceline.sampling import Warper
    from paceline.sampling.answered import question_about
    from paceline.types import SamplingParams

    if bench.attention != "triton":
        return {}
    from paceline.models.cuda_executor.kernels.cut_races import cut_race

    warper, found = Warper(SamplingParams(temperature=0.8, top_k=50, top_p=0.9)), {}
    for count in (1, 2) if bench.quick else (1, 4, 8, 16, 64):
        asked = [question_about(warper, (), noise.key(i, "target", -1)) for i in range(count)]
        wide = Wide.of(asked, logits.shape[1], lambda values: torch.from_numpy(values).to(bench.on))
        kept = logits[:count]
        peaks = peaks_of(kept)
        with bench.current():
            found[str(count)] = {
                "sorted": 1e3 * bench.seconds(partial(answers_of, kept, peaks, wide)),
                "raced": 1e3 * bench.seconds(partial(cut_race, kept, peaks, wide)),
            }
    return found


def identity(bench: Bench) -> dict[str, Any]:
    """Greedy texts with drafts against plain ones, one request at a time and together."""
    count, length = (2, 12) if bench.quick else (8, 64)
    prompts, found = bench.prompts(count), {}
    for name, model in (("default", bench.model), ("deterministic", bench.exact)):
        plain, _ = answer_all(bench.engine(model), prompts, length)
        answers = {tuple(prompt): text for prompt, text in zip(prompts, plain, strict=True)}
        engine = bench.engine(model, 4, answers)
        alone = [answer_all(engine, [prompt], length)[0][0] for prompt in prompts]
        together, figures = answer_all(engine, prompts, length)
        found[name] = {
            "texts": 2 * count,
            "same": sum(a == b for texts in (alone, together) for a, b in zip(texts, plain, strict=True)),
            "drafted": figures["drafted"],
        }
    return found


def _mixed(longest: int) -> tuple[Any, int]:
    """(a chunk, a decode after a long context, a chain and a tree; slots of a cache that holds them)."""
    from paceline.models.rows import Part, build_rows

    pages = np.random.default_rng(1).permutation(4 * (longest // 16 + 2)).reshape(4, -1).tolist()
    tokens = list(range(9))
    parts = [
        Part(pages[0], 3, tokens), Part(pages[1], longest, tokens[:1]), Part(pages[2], 17, tokens[:4]),
        Part(pages[3], 14, tokens[:6], (-1, 0, 0, 1, 2, 2)),
    ]  # fmt: skip
    return build_rows(parts), 4 * (longest // 16 + 2) * 16 + 1


def _random(bench: Bench, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    make = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=make).to(bench.on, dtype)
