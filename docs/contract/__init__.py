"""Writes the contract as documents for people who write clients: `python -m docs.contract [--check]`.

JSON Schemas of all structures go to `docs/schemas/`, the AsyncAPI document to `docs/asyncapi.yaml`. Both come from
`smcp_proto` and `smcp_bus`; what is written here beside them is said in words only.
"""
