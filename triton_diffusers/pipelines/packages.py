# SPDX-License-Identifier: Apache-2.0
"""Packages that pipelines need and this Python lacks: which, and what to type to get them."""
