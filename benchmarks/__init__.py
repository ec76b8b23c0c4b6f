# SPDX-License-Identifier: Apache-2.0
"""Measurements of what serving costs: `python -m benchmarks NAME`, one module each."""
