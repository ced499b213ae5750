"""Writes the first cases of the corpus: `python tests/fuzz/seeds.py`. Later ones were found by fuzzing."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from synthetic import write_tokenizer

CORPUS = Path(__file__).parent / "corpus"

REQUESTS = {
    "chat": """/v1/chat/completions
{"model":"fake","messages":[{"role":"system","content":"Be brief"},{"role":"user","content":[{"type":"text",
"text":"Hi"}]}],"max_tokens":4,"temperature":0.5,"stop":["a"],"logit_bias":{"5":1},"n":2,"logprobs":true,
"top_logprobs":2,"seed":1,"stream":true,"stream_options":{"include_usage":true}}""",
    "chat-tools": """/v1/chat/completions
{"model":"fake","messages":[{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":
{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":"x"}],"tools":[{"type":"function",
"function":{"name":"f","parameters":{"type":"object"}}}],"tool_choice":"auto"}""",
    "chat-schema": """/v1/chat/completions
{"model":"fake","messages":[{"role":"user","content":"Hi"}],"response_format":{"type":"json_schema",
"json_schema":{"name":"x","schema":{"type":"object","properties":{"a":{"type":"integer"}}}}}}""",
    "completion": """/v1/completions
{"model":"fake","prompt":["a","bc"],"echo":true,"max_tokens":0,"logprobs":1,"suffix":"","best_of":1}""",
    "completion-ids": """/v1/completions
{"model":"fake","prompt":[[1],[2,3]],"max_tokens":3,"n":2,"stop_token_ids":[1],"min_tokens":1}""",
    "embeddings": """/v1/embeddings
{"model":"fake","input":["a","b"],"encoding_format":"base64","dimensions":2}""",
    "tokenize": """/tokenize
{"prompt":"Hi","add_special_tokens":false,"return_token_strs":true}""",
    "detokenize": """/detokenize
{"tokens":[72,105,255]}""",
    "responses": """/v1/responses
{"model":"fake","input":[{"role":"user","content":[{"type":"input_text","text":"Hi"}]}],"instructions":"x",
"max_output_tokens":4,"tools":[],"text":{"format":{"type":"text"}},"stream":true}""",
    "messages": """/v1/messages
{"model":"fake","max_tokens":4,"system":"x","messages":[{"role":"user","content":[{"type":"text","text":"Hi"}]}],
"stop_sequences":["a"],"tools":[{"name":"f","input_schema":{"type":"object"}}],"stream":true}""",
    "count-tokens": """/v1/messages/count_tokens
{"model":"fake","messages":[{"role":"user","content":"Hi"}]}""",
    "ollama-chat": """/api/chat
{"model":"fake","messages":[{"role":"user","content":"Hi","images":[]}],"stream":false,"format":"json",
"options":{"num_predict":3,"stop":["a"],"temperature":0},"keep_alive":"5m","think":false}""",
    "ollama-generate": """/api/generate
{"model":"fake","prompt":"Hi","system":"x","raw":false,"options":{"num_predict":3},"keep_alive":-1}""",
    "ollama-show": """/api/show
{"model":"fake","verbose":true}""",
    "prefix-explain": """/v1/prefix/explain
{"model":"fake","messages":[{"role":"system","content":"Be brief"},{"role":"user","content":"Hi"}],
"cache_salt":"a"}""",
    "prefix-warm": """/v1/prefix/warm
{"model":"fake","prompt":["The same beginning of all","The same end"],"cache_salt":"a"}""",
    "prefix-pin": """/v1/prefix/pin
{"model":"fake","messages":[{"role":"system","content":"The same"}],"add_generation_prompt":false}""",
    "prefix-unpin": """/v1/prefix/unpin
{"id":"0123456789abcdef"}""",
    "batch": """batch
{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"model":"fake","prompt":"Hi","stream":false}}""",
}


def write_gguf(path: Path) -> None:
    """A vocabulary, hyperparameters, a key of every other type, and two small tensors."""
    writer = gguf.GGUFWriter(path, "llama")
    size = write_tokenizer(writer, "smollm")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(size)
    writer.add_int8("i8", -1)
    writer.add_uint16("u16", 1)
    writer.add_int64("i64", -1)
    writer.add_float64("f64", 1.0)
    writer.add_array("floats", [0.5])
    writer.add_tensor("output_norm.weight", np.ones(8, np.float32))
    blocks = gguf.quants.quantize(np.ones((2, 32), np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("token_embd.weight", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Writes them all."""
    for name, text in REQUESTS.items():
        head, _, body = text.partition("\n")
        (CORPUS / "requests" / name).write_text(f"{head}\n{body.replace(chr(10), '')}")
    write_gguf(CORPUS / "gguf" / "model")


if __name__ == "__main__":
    main()
