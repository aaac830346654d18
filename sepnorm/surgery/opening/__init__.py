"""Models from elsewhere. One way leads to every library: a folder's settings are read by us, what describes a model is written to a
clean folder beside links to its safetensors, and only that is opened, with arguments of ours.

Nothing in a folder is run, nothing outside of it is read, and no model is built that is larger than its weights.
"""
