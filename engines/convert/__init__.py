"""Hugging Face folders (config.json, safetensors, a tokenizer) to GGUF, with numpy alone. The files are read as untrusted input; the result
is what llama.cpp's own convert_hf_to_gguf.py makes of them, but for descriptive names."""
