"""Tests of the compiler have kernels compiled as users have them, which takes longer."""

import pytest


@pytest.fixture(autouse=True)
def as_users_compile(monkeypatch):
    monkeypatch.setenv("FLEXOR_SIMD_LEVEL", "2")
