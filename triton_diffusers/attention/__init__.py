# SPDX-License-Identifier: Apache-2.0
"""The attention backend of an entry: chosen, tried on the real model, and set."""
