"""What to check or change next, one sentence per cause; docs/causes/ has the long form."""

from __future__ import annotations

FIXES: dict[str, str] = {
    "temperature_not_restored": (
        "Divide the trainer's logits by the sampling temperature, or let the engine return "
        "processed log-probs; compare logprobs_mode of both."
    ),
    "temperature_on_logprobs": (
        "Divide logits, not log-probs, by the temperature: normalise after the division."
    ),
    "truncation_not_mirrored": (
        "Sample without top-p, top-k and min-p, or renormalise the trainer's log-probs over the "
        "kept set (sampling mask)."
    ),
    "penalty_not_mirrored": (
        "Switch penalties and logit biases off (look in generation_config.json of the model), "
        "or apply them in the trainer too."
    ),
    "sampling_not_as_reported": (
        "Make one side report the law that is sampled: processed log-probs in the engine and "
        "the same temperature and truncation in the trainer."
    ),
    "token_shift": (
        "Align labels: log-prob t must come from the logits at position t − 1; compare array "
        "lengths and left padding."
    ),
    "sample_permutation": (
        "Join by sample id or content hash; look for sorting, bucketing or shuffling between "
        "generation and scoring."
    ),
    "padding_attended": (
        "Pass the attention mask (or packed sequence lengths) to the scoring forward."
    ),
    "position_offset": (
        "Derive position ids from the attention mask, for the prompt and the response alike."
    ),
    "mask_includes_non_response": (
        "Set the loss mask to 0 on tool output, prompt and environment tokens."
    ),
    "boundary_token": (
        "Compare what both sides do with BOS, EOS and the first response token; check finish "
        "reasons and stop tokens."
    ),
    "retokenized": "Train on the token ids the engine returned; never decode and encode again.",
    "missing_value_sentinel": (
        "Send missing log-probs as absent or masked, never as 0, −1 or −9999."
    ),
    "nonfinite_values": (
        "Find where −inf or NaN arises (masked logits, overflow in half precision) and mask "
        "those tokens."
    ),
    "wrong_token_logprob": (
        "Look the sampled token up by id; the first entry of a top-k list is the likeliest "
        "token, not the sampled one."
    ),
    "bf16_logprob_storage": "Compute and keep log-probs in float32 from the log-softmax on.",
    "bypass_mode": (
        "Recompute the trainer's log-probs: this run trains on the engine's own numbers, so "
        "nothing is compared."
    ),
    "side_missing": (
        "Check that both probes are attached and send to the same run; without both sides there "
        "is no verdict."
    ),
    "stale_weights": (
        "Check that each weight sync reaches every engine; compare weight versions or checksums "
        "after it."
    ),
    "partial_weight_sync": (
        "Compare a checksum per tensor on both sides after a sync; look for names that the "
        "mapping drops (buffers, experts, tied heads)."
    ),
    "corrupt_weight_layout": (
        "Compare tensors after the sync element by element: head order, fused or transposed "
        "layouts, shards."
    ),
    "lora_not_applied": (
        "Check that the adapter is loaded, scaled once and merged once in the engine."
    ),
    "stale_prefix_cache": (
        "Reset the prefix cache at every weight update, or salt its key with the weight version."
    ),
    "mixed_weight_versions": (
        "Look at the named replicas: their last sync failed, or requests were served while it ran."
    ),
    "update_lost_to_rounding": (
        "Sync from the fp32 master and count the bf16 weights that change; raise the learning "
        "rate or round stochastically."
    ),
    "rope_mismatch": (
        "Compare rope_theta, scaling and the dtype of inv_freq and position ids on both sides."
    ),
    "low_precision_logits": "Run the output head and the log-softmax in float32 on both sides.",
    "quantized_rollout": (
        "Compare with an unquantised rollout on one batch; exclude router and head from "
        "quantisation."
    ),
    "moe_router_flips": (
        "Replay the engine's routing in the trainer, or run the router in float32."
    ),
    "train_mode_dropout": (
        "Call eval() (dropout off) for the log-prob pass; score the same tokens twice, they "
        "must be equal."
    ),
    "norm_or_precision_mismatch": (
        "Compare dtype, rms_norm_eps, attention backend and parallel sizes of both fingerprints."
    ),
    "numerical_noise": "Nothing to do: the two sides agree to within rounding.",
}
