# SPDX-License-Identifier: Apache-2.0
"""One Triton request and its one final response."""
