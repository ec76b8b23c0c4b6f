# SPDX-License-Identifier: Apache-2.0
"""Quantized weights: asked for, checked before the load, verified after it."""
