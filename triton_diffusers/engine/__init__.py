# SPDX-License-Identifier: Apache-2.0
"""The queue and the threads that read, run and answer requests. Knows no Triton, no diffusers."""
