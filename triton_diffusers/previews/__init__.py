# SPDX-License-Identifier: Apache-2.0
"""Previews of running calls: learned from the model's own finished pictures."""
