"""Attention with statistics in Triton, one idea per file.

In `device`, `views` names what a kernel receives, `logits` and `visibility` give a tile its final
logits, `state` is the online update of a row, `tiles` loads and multiplies, `dropout` draws;
`forward`, `decode`, `coefficients`, `queries` and `keys` are the kernels. Here, `problem` bundles a
call, `plan_forward` and `plan_backward` list what to launch, `configs` holds tile sizes, `launch`
starts kernels and `operators` registers them with torch. Nothing here is imported before
`kernel="triton"` is used.
"""
