"""Writes the contract as documents for people who write clients: `python -m docs.contract [--check]`.

JSON Schemas of all structures go to `docs/schemas/`, the AsyncAPI document to `docs/asyncapi.yaml`. Both come from
`smcp_proto` and `smcp_bus`; what is written here beside them is said in words only. The schema of a Computer's file
comes from `smcp_computer`, which ships a copy of it.
"""
