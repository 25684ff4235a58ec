"""Attention with statistics in Triton, one idea per file.

`views` names what a kernel receives, `logits` and `visibility` give a tile its final logits,
`state` is the online update of a row, `tiles` loads and multiplies, `dropout` draws; `forward`,
`decode`, `coefficients`, `queries` and `keys` are the kernels; `configs` holds their tile sizes,
`launch` starts them and `ops` registers them with torch. Nothing here is imported before
`kernel="triton"` is used.
"""
