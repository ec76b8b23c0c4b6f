# SPDX-License-Identifier: Apache-2.0
"""The operator's command: writes, checks and serves Triton entries of diffusers pipelines."""
