# SPDX-License-Identifier: Apache-2.0
"""Serve any Hugging Face diffusers pipeline on NVIDIA Triton."""

__version__ = "0.1.0"
