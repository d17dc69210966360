"""The paced engine: SGLang's native routes with seeded tokens at a set rate.

For tests, and for scheduler benchmarks that emulate many equal devices on a small machine; results made with it say
so. It computes no model: the next token is a pure function of the weights, the seed and every token before it, so a
request that is moved to another paced engine of the same weights goes on with exactly the tokens it would have had.
"""
