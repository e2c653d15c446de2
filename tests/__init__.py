"""Tests of the whole system; without this module, tests/packaging would shadow the library of that name."""
