# SPDX-License-Identifier: Apache-2.0
"""Served entries held against plain diffusers, element for element.

`plain` and `plain_outputs` know nothing of triton_diffusers: they are the other side of the
comparison. `scripts/parity.py` and the server tests share the rest.
"""
