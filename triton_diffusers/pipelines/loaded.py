# SPDX-License-Identifier: Apache-2.0
"""A pipeline ready to be called, and what loading it told."""
