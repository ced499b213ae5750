"""What a model is: its graph, weights, tokenizer, chat template, and where to get it."""
