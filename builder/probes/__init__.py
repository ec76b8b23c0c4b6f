# SPDX-License-Identifier: Apache-2.0
"""One small request to a running entry, over HTTP or gRPC, as a health check sends it."""
