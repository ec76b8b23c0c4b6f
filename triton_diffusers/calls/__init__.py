# SPDX-License-Identifier: Apache-2.0
"""The tensors of a request -> the arguments of a call, and its output -> tensors or files."""
