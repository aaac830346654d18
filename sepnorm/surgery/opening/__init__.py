"""Opens models from untrusted folders and the hub, safely and in one way for every library.

We read the settings of a folder ourselves and write the vetted ones to a clean folder, beside links to its safetensors.
The library opens only this copy, with arguments of ours. No code in a folder is run, nothing outside of it is read, and
no model is built that is larger than its weights.
"""
