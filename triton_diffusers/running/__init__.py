# SPDX-License-Identifier: Apache-2.0
"""A loaded pipeline at work: one call, calls joined into one, calls side by side."""
