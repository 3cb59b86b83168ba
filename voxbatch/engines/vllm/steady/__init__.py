"""The scheduler fast path: cheaper scheduling of the steps in which hundreds of requests only continue.

Nearly all steps are of this kind. A request of voxbatch is plain: it writes one token per step until a known token or a
known length ends it. It keeps its audio until then, and only its whole text is needed. vLLM's scheduler also handles
all other kinds of requests, and takes about 17 µs per step for each request. For 512 requests that is 9 ms of the
process that must also keep the GPU busy, and the GPU needs about as long.

`plain` checks the conditions, `schedule` and `update` are the two halves of such a step, `scheduler` adds them to
vLLM's class, and `shortcuts` help in the other steps. One rule applies throughout. vLLM's own code handles all requests
that are not plain, and everything that is not done for each request. Only the loop over the plain requests is
voxbatch's own.
"""
