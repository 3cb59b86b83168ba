"""Steps in which hundreds of requests only go on, which are nearly all: what vLLM's scheduler need not ask of each.

A request of ours is plain: it says one token a step until a known token or a known length ends it, holds its audio that
long, and only its whole text is wanted. vLLM's scheduler, which is made for everything else too, takes some 17 µs a
step for it; 512 requests are 9 ms of the one process that also has to keep the GPU busy, and the GPU needs as much.

`plain` says where this holds, `schedule` and `update` are the two halves of such a step, `scheduler` puts them into
vLLM's class, and `shortcuts` help in the other steps. The rule throughout: vLLM's own code does whatever is not that
plain, and all that is not done once a request; only the loop over the plain requests is ours.
"""
