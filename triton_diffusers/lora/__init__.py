# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters: read, checked and put on a pipeline."""
