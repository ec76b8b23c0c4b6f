# SPDX-License-Identifier: Apache-2.0
"""A local tritonserver: found, started, watched and ended with its Python stubs."""
