# SPDX-License-Identifier: Apache-2.0
"""Calls over Triton's protocols: gRPC, gRPC for asyncio, and HTTP."""
